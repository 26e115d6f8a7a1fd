//! Where a server's settings come from: `server.toml`, the environment, the command line, in this order of
//! growing weight.
//!
//! Owns: the keys, their variables and ranges, errors that say what was meant, and the rule where a server
//! may listen. Deliberately absent: what a setting does ([`crate::settings`]), the command line itself, the
//! secret key, which is in no file of settings.

mod error;
mod keys;
#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_core::suggest;
use toml::{Table, Value};

use crate::settings::Settings;
pub use error::{ConfigError, UnknownKey};

/// The longest configuration file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

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

    /// Takes what the file says. One that is not there says nothing, unless somebody named it.
    pub fn read_file(&mut self, path: &Utf8Path, is_named: bool) -> Result<(), ConfigError> {
        match read(path) {
            Ok(text) => self.take_file(&text, path),
            Err(ConfigError::Io { source, .. })
                if source.kind() == ErrorKind::NotFound && !is_named =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
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
                    let known = keys::KEYS.iter().map(|key| key.env);
                    let suggestion = suggest::nearest(name, known).map(str::to_owned);
                    unknown.push(UnknownKey { key: name.to_owned(), suggestion });
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

/// What an unknown key may have meant: one like it, or the same name in another section.
fn unknown_key(key: &str) -> UnknownKey {
    let known = || keys::KEYS.iter().map(|key| key.name);
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let of_client = key.strip_prefix("clients.").and_then(|rest| rest.split('.').next());
    let suggestion = match of_client {
        Some(name) => Some(format!("clients.{name}.min_version")),
        None => suggest::nearest(key, known())
            .or_else(|| known().find(|known| last(known) == last(key)))
            .map(str::to_owned),
    };
    UnknownKey { key: key.to_owned(), suggestion }
}

fn read(path: &Utf8Path) -> Result<String, ConfigError> {
    let io = |source| ConfigError::Io { path: path.to_owned(), source };
    // NONBLOCK: a named pipe in its place must not make us wait.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| io(std::io::Error::new(ErrorKind::InvalidData, error)))
}
