//! A connection whose other side must take what it is sent: when it takes nothing for too long, it is an error.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The connection.
pub(crate) struct Impatient<S> {
    stream: S,
    stall_max: Duration,
    /// Runs while the other side takes nothing.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Impatient<S> {
    pub(crate) fn new(stream: S, stall_max: Duration) -> Self {
        Self { stream, stall_max, patience: None }
    }

    /// What the stream says, or an error when it says for too long that it must be waited for.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let stall_max = self.stall_max;
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_max)));
        ready!(patience.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, AsyncWrite::poll_shutdown)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_takes_something_is_waited_for_anew_and_who_takes_nothing_is_an_error() {
        let (near, mut far) = tokio::io::duplex(1);
        let mut near = Impatient::new(near, Duration::from_millis(20));
        let mut deadlines = Vec::new();
        for _ in 0..2 {
            near.write_all(b"x").await.unwrap();
            let polled = poll_fn(|context| {
                Poll::Ready(Pin::new(&mut near).poll_write(context, b"x").is_pending())
            });
            assert!(polled.await, "there is room for one byte");
            deadlines.push(near.patience.as_ref().unwrap().deadline());
            far.read_u8().await.unwrap();
        }
        assert!(deadlines[0] < deadlines[1]);
        near.write_all(b"x").await.unwrap();
        let refused = near.write_all(b"x").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }
}
