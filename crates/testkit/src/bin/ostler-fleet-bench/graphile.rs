//! stub
use crate::{Fault, Options};
pub(crate) fn measure(_: &Options, _: &str) -> Result<Option<f64>, Fault> {
    Ok(None)
}
