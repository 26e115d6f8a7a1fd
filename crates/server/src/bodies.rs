//! How many bytes of request bodies the server holds at once. What does not fit is answered that the server is busy,
//! before it is read.

use std::sync::Arc;

use axum::http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::{Fault, header_text};
use crate::store::StoreError;

/// Bytes of all bodies together.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// What is counted: a KiB.
const UNIT_BYTES: usize = 1 << 10;

/// The room for bodies.
pub(crate) struct Bodies(Arc<Semaphore>);

impl Bodies {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BODIES_BYTES_MAX / UNIT_BYTES)))
    }

    /// Room for the body of a request, for as long as it is kept: as long as it says it is, or as long as it may
    /// be when it does not say.
    pub(crate) fn take(
        &self,
        headers: &HeaderMap,
        bytes_max: usize,
    ) -> Result<OwnedSemaphorePermit, Fault> {
        let said = header_text(headers, "content-length").and_then(|text| text.parse().ok());
        let bytes: usize = said.unwrap_or(bytes_max).min(bytes_max);
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.0).try_acquire_many_owned(units);
        room.map_err(|_| StoreError::Busy.into())
    }
}

/// The body has arrived and is as long as this: the rest of its room is for others.
pub(crate) fn arrived(room: &mut OwnedSemaphorePermit, bytes: usize) {
    let rest = room.num_permits().saturating_sub(bytes.div_ceil(UNIT_BYTES));
    drop(room.split(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_beyond_the_room_are_refused_until_others_are_done() {
        let bodies = Bodies::new();
        let largest = 16 << 20;
        let mut said = HeaderMap::new();
        said.insert("content-length", "1000".parse().unwrap());
        let small = bodies.take(&said, largest).unwrap();
        let large: Vec<_> = (0..15).map(|_| bodies.take(&HeaderMap::new(), largest)).collect();
        assert!(large.iter().all(Result::is_ok));
        let refused = bodies.take(&HeaderMap::new(), largest).unwrap_err();
        assert_eq!(refused.status, axum::http::StatusCode::SERVICE_UNAVAILABLE);
        // There is room for small ones still, and for a large one when the small one is done.
        assert!(bodies.take(&said, largest).is_ok());
        drop(small);
        let mut last = bodies.take(&HeaderMap::new(), largest).unwrap();
        assert!(bodies.take(&said, largest).is_err());
        // It did not say how long it is, and was short.
        arrived(&mut last, 10);
        assert!(bodies.take(&said, largest).is_ok());
    }
}
