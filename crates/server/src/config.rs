//! Where a server's settings come from: `server.toml`, the environment, the command line, in this order of
//! growing weight.
//!
//! Owns: the keys, their variables and ranges, errors that say what was meant, and the rule where a server
//! may listen. Deliberately absent: what a setting does ([`crate::settings`]), reading the file, the command
//! line itself, the secret key, which is in no file of settings.

mod error;
mod keys;
#[cfg(test)]
mod tests;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_core::settings::UnknownKey;
use toml::{Table, Value};

use crate::settings::Settings;
pub use error::ConfigError;

/// Settings on their way.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is said so far.
    pub settings: Settings,
    /// A certificate, PEM.
    pub tls_cert: Option<Utf8PathBuf>,
    /// Its key, PEM.
    pub tls_key: Option<Utf8PathBuf>,
}

impl Config {
    /// The defaults, with this database.
    pub fn new(database: String) -> Self {
        Self { settings: Settings::new(database), tls_cert: None, tls_key: None }
    }

    /// Takes what a file's text says; `path` is named in errors.
    pub fn take_file(&mut self, text: &str, path: &Utf8Path) -> Result<(), ConfigError> {
        let table: Table = text.parse().map_err(|source| ConfigError::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let mut found = Vec::new();
        flatten("", &table, &mut found);
        let (mut unknown, mut faults) = (Vec::new(), Vec::new());
        for (key, value) in found {
            if let Some(taken) = keys::take_client(self, &key, value) {
                faults.extend(taken.err().map(|fault| format!("{key} {fault}")));
                continue;
            }
            match keys::find(&key) {
                None => unknown.push(unknown_key(&key)),
                Some(known) => {
                    if let Err(fault) = known.take(self, value) {
                        faults.push(format!("{key} {fault}"));
                    }
                }
            }
        }
        if !unknown.is_empty() {
            return Err(ConfigError::Unknown { place: path.to_string(), keys: unknown });
        }
        if !faults.is_empty() {
            return Err(ConfigError::Values { place: path.to_string(), faults });
        }
        Ok(())
    }

    /// Takes what the environment says.
    pub fn take_env<'e>(
        &mut self,
        env: impl Iterator<Item = (&'e str, &'e str)>,
    ) -> Result<(), ConfigError> {
        let place = || "the environment".to_owned();
        let (mut unknown, mut faults) = (Vec::new(), Vec::new());
        for (name, text) in env {
            match keys::KEYS.iter().find(|key| key.env == name) {
                Some(known) => {
                    if let Err(fault) = known.take_text(self, text) {
                        faults.push(format!("{name} {fault}"));
                    }
                }
                None if keys::is_ours(name) => {
                    unknown.push(UnknownKey::of(name, keys::KEYS.iter().map(|key| key.env)));
                }
                None => {}
            }
        }
        if !unknown.is_empty() {
            return Err(ConfigError::Unknown { place: place(), keys: unknown });
        }
        if !faults.is_empty() {
            return Err(ConfigError::Values { place: place(), faults });
        }
        Ok(())
    }

    /// The settings, when a server may listen where they say: in clear only on this machine, or behind a
    /// proxy that was named.
    pub fn finish(mut self) -> Result<Settings, ConfigError> {
        self.settings.tls = match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(ConfigError::HalfTls { missing: "tls_key" }),
            (None, Some(_)) => return Err(ConfigError::HalfTls { missing: "tls_cert" }),
        };
        let address = self.settings.listen;
        let is_private = address.ip().to_canonical().is_loopback();
        if !is_private && self.settings.tls.is_none() && self.settings.proxies.is_empty() {
            return Err(ConfigError::Exposed { address });
        }
        Ok(self.settings)
    }
}

/// Keys and values, the sections' names before the keys'.
fn flatten<'t>(section: &str, table: &'t Table, found: &mut Vec<(String, &'t Value)>) {
    for (name, value) in table {
        let key = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
        match value {
            Value::Table(table) if !table.is_empty() => flatten(&key, table, found),
            Value::Table(_) if keys::is_section(&key) => {}
            value => found.push((key, value)),
        }
    }
}

/// What an unknown key may have meant.
fn unknown_key(key: &str) -> UnknownKey {
    match key.strip_prefix("clients.").and_then(|rest| rest.split('.').next()) {
        Some(name) => {
            let suggestion = Some(format!("clients.{name}.min_version"));
            UnknownKey { key: key.to_owned(), suggestion }
        }
        None => UnknownKey::of(key, keys::KEYS.iter().map(|key| key.name)),
    }
}
