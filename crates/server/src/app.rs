//! What every request shares.

use std::sync::Arc;

use crate::auth::Tokens;
use crate::board::Board;
use crate::machines::Machines;
use crate::rate::Rates;
use crate::settings::Settings;
use crate::store::sql::SqlStore;
use crate::sweeper::Presence;

/// One server.
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) store: SqlStore,
    pub(crate) board: Arc<Board>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) rates: Rates,
    pub(crate) machines: Arc<Machines>,
    pub(crate) presence: Presence,
    pub(crate) github: crate::machine::lend::Apps,
    pub(crate) streams: Arc<crate::events::Streams>,
    pub(crate) bodies: crate::bodies::Bodies,
    /// Waiting claims and streams end when the server stops.
    pub(crate) stopping: tokio_util::sync::CancellationToken,
}

impl App {
    pub(crate) fn new(
        settings: Settings,
        store: SqlStore,
        (board, tokens, machines): (Arc<Board>, Arc<Tokens>, Arc<Machines>),
        stopping: tokio_util::sync::CancellationToken,
    ) -> Self {
        let rates = Rates::new(settings.limits, store.shared().metrics.refused.clone());
        let streams = crate::events::Streams::new();
        let bodies = crate::bodies::Bodies::new(settings.waits.body_max);
        let presence = Presence::new(settings.policy, Arc::clone(&store.shared().clock));
        let github = crate::machine::lend::Apps::new();
        Self {
            settings,
            store,
            board,
            tokens,
            rates,
            machines,
            presence,
            github,
            streams,
            bodies,
            stopping,
        }
    }
}
