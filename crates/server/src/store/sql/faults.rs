//! What the errors of a database mean for the batch that met them, and how they are logged.

use sqlx::migrate::MigrateError;

use super::OpenError;
use crate::store::StoreError;

/// An error with its causes, for a log.
pub(super) struct Chain<'a>(pub(super) &'a StoreError);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(out, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

fn code(error: &StoreError) -> Option<String> {
    let StoreError::Database(sqlx::Error::Database(error)) = error else { return None };
    error.code().map(|code| code.into_owned())
}

/// Another server was quicker, and the same may be done now: PostgreSQL chose this transaction to end a deadlock, or
/// a claim with the same word was given a task since this one looked.
pub(super) fn is_lost_race(error: &StoreError) -> bool {
    matches!(code(error).as_deref(), Some("40P01" | "40001" | "23505"))
}

/// The database answered: it is there, and something in the batch was wrong.
pub(super) fn is_answer(error: &StoreError) -> bool {
    code(error).is_some_and(|code| !is_trouble(&code))
}

/// The database has trouble of its own: PostgreSQL shuts down, is full or out of connections; SQLite's file is
/// locked, full or cannot be read (its code is that of the error in its last byte).
fn is_trouble(code: &str) -> bool {
    const SQLITE: [u32; 4] = [5, 6, 10, 13];
    match code.parse::<u32>() {
        Ok(number) if code.len() != 5 => SQLITE.contains(&(number & 0xff)),
        _ => ["08", "53", "57"].iter().any(|class| code.starts_with(class)),
    }
}

/// Another program holds a lock on SQLite's file.
pub(super) fn is_locked(error: &OpenError) -> bool {
    let (OpenError::Open(error)
    | OpenError::Migrate(
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _),
    )) = error
    else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    // PostgreSQL's have five characters.
    let code = code.filter(|code| code.len() < 5).and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

#[cfg(test)]
mod tests {
    use super::is_trouble;

    #[test]
    fn trouble_of_the_database_is_no_fault_of_one_request() {
        // Shutdown, out of connections, out of disk; locked, a snapshot that is locked, full, an I/O error.
        for code in ["57P01", "53300", "53100", "08006", "5", "517", "13", "778"] {
            assert!(is_trouble(code), "{code}");
        }
        // A deadlock, a unique key, a guard; on SQLite a constraint and an error in a statement.
        for code in ["40P01", "23505", "22012", "2067", "1"] {
            assert!(!is_trouble(code), "{code}");
        }
    }
}
