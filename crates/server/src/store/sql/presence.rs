//! Whether a PostgreSQL database was used before, asked without changing it.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;

use super::OpenError;

/// How long it waits for a connection.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(5);

/// Whether a server has made its tables there.
pub async fn has_tables(url: &str) -> Result<bool, OpenError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| OpenError::Url)?;
    let mut conn = super::connect(&options, CONNECT_WAIT_MAX).await?;
    let asked = sqlx::query_scalar("SELECT to_regclass('meta') IS NOT NULL");
    let found = asked.fetch_one(&mut conn).await;
    // A connection that cannot be closed is closed by the end of the process.
    let _ = conn.close().await;
    found.map_err(OpenError::Open)
}
