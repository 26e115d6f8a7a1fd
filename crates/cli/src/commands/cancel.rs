//! The order that Ctrl+C in `ostler run` gives: sent, and followed until it is known to have been taken.

use std::process::ExitCode;
use std::time::Duration;

use ostler_core::task::Refusal;
use ostler_host::client::{Client, ClientError};
use tokio::sync::oneshot;

use crate::daemon_client;
use crate::error::{Code, Failure};
use crate::output;

/// How long the daemon may take to take an order from its queue.
const TAKEN_MAX: Duration = Duration::from_secs(5);

/// An order to cancel, on its way.
pub(super) struct CancelOrder {
    /// Ready when the daemon has taken it.
    taken: oneshot::Receiver<()>,
    /// What the daemon says of it, until that was read.
    answer: Option<oneshot::Receiver<Result<(), ClientError>>>,
}

impl CancelOrder {
    pub(super) fn send(client: &Client, id: &str) -> Self {
        let (client, id) = (client.clone(), id.to_owned());
        let ((is_taken, taken), (answered, answer)) = (oneshot::channel(), oneshot::channel());
        tokio::spawn(async move {
            let cancelled = async {
                // Whoever has left by then does not want to know any more.
                let _ = answered.send(client.cancel(&id).await.map(drop));
            };
            // Commands are taken in order: when `list` is answered, the order before it was taken.
            let listed = async {
                if client.list().await.is_ok() {
                    let _ = is_taken.send(());
                }
            };
            tokio::join!(biased; cancelled, listed)
        });
        Self { taken, answer: Some(answer) }
    }

    /// The daemon's answer, once.
    pub(super) async fn answered(order: &mut Option<Self>) -> Result<(), ClientError> {
        let Some(answer) = order.as_mut().and_then(|order| order.answer.as_mut()) else {
            return std::future::pending().await;
        };
        let result = answer.await;
        if let Some(order) = order {
            order.answer = None;
        }
        result.unwrap_or_else(|_| Err(ClientError::Closed("it ended".to_owned())))
    }

    /// For who does not wait for the end. A command whose client has gone before it was taken is not
    /// executed, so that is waited for.
    pub(super) async fn leave(self, id: &str) -> Result<ExitCode, Failure> {
        let taken = tokio::time::timeout(TAKEN_MAX, self.taken).await;
        // A refusal comes before the answer to what was asked after it.
        let answer = self.answer.and_then(|mut answer| answer.try_recv().ok());
        match answer {
            Some(Err(error)) if !is_too_late(&error) => Err(daemon_client::failure(error)),
            None if !matches!(taken, Ok(Ok(()))) => Err(Failure::new(
                Code::Unreachable,
                "the daemon has not confirmed that it cancels the task",
            )
            .hint(format!(
                "look in with `ostler task show {id}`, and cancel it with `ostler task cancel {id}`"
            ))),
            _ => {
                output::note(&format!(
                    "the daemon goes on cancelling; look in with `ostler task show {id}`"
                ));
                Ok(Code::Cancelled.into())
            }
        }
    }
}

/// Whether a cancel came when the task had just ended.
pub(super) fn is_too_late(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(text) if *text == Refusal::NotActive.to_string())
}
