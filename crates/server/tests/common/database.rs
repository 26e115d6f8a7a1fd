//! The database beside its servers, as whoever administrates it has it.

use sqlx::{Connection as _, PgConnection, SqliteConnection};

/// Does one statement; how many rows it changed.
pub(crate) async fn sql(database: &str, sql: &'static str) -> u64 {
    if database.starts_with("postgres") {
        let mut conn = PgConnection::connect(database).await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap().rows_affected()
    } else {
        let mut conn = SqliteConnection::connect(database).await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap().rows_affected()
    }
}
