//! What a test's secrets must not be in: any row of the database, as an export writes all of them, and anything
//! that was logged.

use std::io::Write;
use std::sync::{Mutex, OnceLock};

use ostler_server::Admin;
use ostler_server::secrets::Keyring;

/// What this process has logged since the first test began to capture.
static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps what is logged from now on, at every level, statements of the database included.
pub(crate) fn capture() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        tracing_subscriber::fmt()
            .with_env_filter("ostler_server=trace,sqlx=trace")
            .with_writer(|| Log)
            .init();
    });
}

/// All of it.
#[allow(dead_code, reason = "not every test file asks")]
pub(crate) fn logged() -> String {
    String::from_utf8_lossy(&LOGGED.lock().unwrap()).into_owned()
}

/// None of these is in a row or in the log; `there` is, so that both were looked at.
pub(crate) async fn nowhere(database: &str, secrets: &[&str], there: &str) {
    let admin = Admin::open(database, Keyring::new(&[7; 32]).unwrap()).await.unwrap();
    let mut rows = Vec::new();
    admin.export(&mut rows).await.unwrap();
    admin.close().await;
    let rows = String::from_utf8(rows).unwrap();
    let logged = logged();
    assert!(rows.contains(there), "no {there} in any row");
    assert!(logged.contains("request") && logged.contains("SELECT"), "nothing was logged");
    for secret in secrets {
        for (place, text) in [("row", &rows), ("log", &logged)] {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{secret} is in a {place}: {line:?}");
        }
    }
}
