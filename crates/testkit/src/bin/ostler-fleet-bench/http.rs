//! A small HTTP/1.1 client: one connection, one request at a time, no more work than the wire needs.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Fault;

/// Bytes of an answer; the envelopes here are small.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A connection that stays.
pub(crate) struct Client {
    stream: TcpStream,
    /// Headers that every request has.
    head: String,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects for a machine that can do this.
    pub(crate) async fn machine(
        address: SocketAddr,
        token: &str,
        capabilities: &str,
    ) -> Result<Self, Fault> {
        let head = format!(
            "Host: fleet\r\nAuthorization: Bearer {token}\r\nX-Felagi-Client-Version: 0.3.0\r\n\
             X-Felagi-Client-Capabilities: {capabilities}\r\nContent-Type: application/json\r\n"
        );
        Self::connect(address, head).await
    }

    /// Connects for a person's program.
    pub(crate) async fn person(address: SocketAddr, token: &str) -> Result<Self, Fault> {
        let head = format!(
            "Host: fleet\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        );
        Self::connect(address, head).await
    }

    async fn connect(address: SocketAddr, head: String) -> Result<Self, Fault> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, head, out: Vec::new(), buffer: Vec::new() })
    }

    /// `POST path`; the status, and the body where there is one.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        lease: Option<&str>,
        body: &str,
    ) -> Result<(u16, Value), Fault> {
        let lease = lease.map(|lease| format!("X-Felagi-Lease: {lease}\r\n")).unwrap_or_default();
        let length = body.len();
        self.out.clear();
        let head = &self.head;
        self.out.extend_from_slice(
            format!("POST {path} HTTP/1.1\r\n{head}{lease}Content-Length: {length}\r\n\r\n{body}")
                .as_bytes(),
        );
        self.stream.write_all(&self.out).await?;
        let (status, body) = self.answer().await?;
        let value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? };
        Ok((status, value))
    }

    /// The same, where only this status is right.
    pub(crate) async fn expect(
        &mut self,
        status: u16,
        path: &str,
        lease: Option<&str>,
        body: &str,
    ) -> Result<Value, Fault> {
        match self.post(path, lease, body).await? {
            (found, value) if found == status => Ok(value),
            (found, value) => Err(format!("{path} was answered {found}: {value}").into()),
        }
    }

    async fn answer(&mut self) -> Result<(u16, Vec<u8>), Fault> {
        self.buffer.clear();
        loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head = std::str::from_utf8(self.buffer.get(..end).unwrap_or_default())?;
                let status = head.get(9..12).ok_or("no status")?.parse()?;
                let length = length(head);
                let from = end + 4;
                while self.buffer.len() < from + length {
                    self.fill().await?;
                }
                return Ok((status, self.buffer.split_off(from)));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        if self.buffer.len() > ANSWER_BYTES_MAX {
            return Err("an answer is too long".into());
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err("the server closed the connection".into()),
            _ => Ok(()),
        }
    }
}

fn length(head: &str) -> usize {
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}
