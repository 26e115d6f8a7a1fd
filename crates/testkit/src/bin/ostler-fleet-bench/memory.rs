//! The private memory of a server that nobody asks anything.

use std::time::Duration;

use crate::product::Database;
use crate::report::{Target, row};
use crate::{Fault, Options};

/// How long it is left alone.
const QUIET: Duration = Duration::from_secs(5);

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    let database = Database::sqlite(options, "memory")?;
    database.init()?;
    let product = database.serve("one")?;
    tokio::time::sleep(QUIET).await;
    let private = product.private_bytes()? as f64 / 1048576.0;
    row("private memory, idle, SQLite", private, "MiB", Target::AtMost(20.0));
    Ok(())
}
