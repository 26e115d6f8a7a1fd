//! A connection whose other side must take what it is sent: when it takes nothing, or too little, for too long, it is an
//! error.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes that whoever takes a long answer takes within the time, at least, to be given it anew.
const TAKEN_BYTES_MIN: usize = 1 << 20;

/// The connection.
pub(crate) struct Impatient<S> {
    stream: S,
    stall_max: Duration,
    /// Runs since the other side had to be waited for, until it has taken all or enough.
    patience: Option<Pin<Box<Sleep>>>,
    /// Bytes that it took meanwhile.
    taken: usize,
}

impl<S: AsyncWrite + Unpin> Impatient<S> {
    pub(crate) fn new(stream: S, stall_max: Duration) -> Self {
        Self { stream, stall_max, patience: None, taken: 0 }
    }

    /// Bytes were taken.
    fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken >= TAKEN_BYTES_MIN {
            self.patience = None;
        }
    }

    /// The other side must be waited for: an error when that lasts too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let stall_max = self.stall_max;
        if self.patience.is_none() {
            self.taken = 0;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_max)));
        ready!(patience.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// What a write came to.
    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.wait(context),
            Poll::Ready(written) => {
                self.took(*written.as_ref().unwrap_or(&0));
                Poll::Ready(written)
            }
        }
    }

    /// What became of all that was written.
    fn done(
        &mut self,
        done: Poll<io::Result<()>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if done.is_pending() {
            return self.wait(context);
        }
        self.patience = None;
        done
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
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.done(done, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.done(done, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.written(written, context)
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

    /// Writes until the other side must be waited for; when that is too long.
    async fn stalls(near: &mut Impatient<tokio::io::DuplexStream>) -> tokio::time::Instant {
        // Unconstrained: the runtime would have it wait before the buffer is full.
        tokio::task::unconstrained(poll_fn(|context| {
            while Pin::new(&mut *near).poll_write(context, &[0; 4_096]).is_ready() {}
            Poll::Ready(())
        }))
        .await;
        near.patience.as_ref().unwrap().deadline()
    }

    #[tokio::test]
    async fn who_takes_enough_is_waited_for_anew_and_who_takes_little_is_not() {
        let (near, mut far) = tokio::io::duplex(2 * TAKEN_BYTES_MIN);
        let mut near = Impatient::new(near, Duration::from_secs(60));
        let first = stalls(&mut near).await;
        let mut take = async |bytes: usize| far.read_exact(&mut vec![0; bytes]).await.unwrap();
        take(4_096).await;
        assert_eq!(stalls(&mut near).await, first, "a little is not enough");
        take(TAKEN_BYTES_MIN).await;
        assert!(stalls(&mut near).await > first);
        // All that was written is on its way: the next answer has a time of its own.
        near.flush().await.unwrap();
        assert!(near.patience.is_none());
    }

    #[tokio::test]
    async fn who_takes_nothing_or_a_byte_now_and_then_is_an_error() {
        for takes in [false, true] {
            let (near, mut far) = tokio::io::duplex(16);
            let mut near = Impatient::new(near, Duration::from_millis(50));
            let taken = async {
                while takes && far.read_u8().await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                refused = near.write_all(&[0; 100_000]) => {
                    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
                }
                () = taken => {}
            }
        }
    }
}
