//! What the first start says: the administrator's token, this once, and what to do next.

use std::net::SocketAddr;

use ostler_server::FirstStart;

use crate::args::server::DatabaseArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::{fleet_client, output};

/// How others find a server whose own address says nothing to them.
const REACHED: &str = "the address by which they reach this server";

/// Variables that the commands need as the server has them, where they are set.
const SAME: [&str; 3] = ["OSTLER_HOME", super::DATABASE_ENV, super::KEY_ENV];

/// What the next steps depend on.
pub(super) struct Here<'a> {
    pub(super) url: &'a str,
    pub(super) address: SocketAddr,
    /// Programs on this machine find it by themselves.
    pub(super) is_noted: bool,
    pub(super) is_behind_proxy: bool,
    pub(super) database: &'a DatabaseArgs,
}

/// The one time that the token is shown.
pub(super) fn greet(context: &Context, here: &Here<'_>, first: &FirstStart) -> Result<(), Failure> {
    let FirstStart { workspace, email, token, days } = first;
    let token_file = fleet_client::token_file(context);
    let flags = flags(here.database);
    let same: Vec<_> = SAME.into_iter().filter(|name| context.env.get_os(name).is_some()).collect();
    let same = match same.is_empty() {
        true => String::new(),
        false => format!(" with the same {}", same.join(", ")),
    };
    let server =
        if here.is_noted { String::new() } else { format!(" --server {}", quoted(here.url)) };
    let elsewhere = elsewhere(here);
    let others = elsewhere.as_deref().map_or_else(String::new, |url| {
        format!("\n     On other machines also in OSTLER_SERVER_URL: {url}")
    });
    let machine = elsewhere.as_deref().unwrap_or(here.url);
    output::line(&format!(
        "This server is new. It has the workspace `{workspace}` and the administrator `{email}`.\n\n\
         The administrator's token, valid for {days} days and shown only now:\n\n    {token}\n\n\
         Next, in another terminal{same}:\n  \
         1. keep the token where `ostler issue` finds it: in OSTLER_TOKEN, or in\n     \
         {token_file}, which only you may read{others}\n  \
         2. make an agent, and a token for the machine that will run it:\n       \
         ostler server agent create --workspace {workspace} --name Freya --provider claude_code{flags}\n       \
         ostler server token create --workspace {workspace} --user {email} \
         --name laptop --days 90 --kind daemon{flags}\n     \
         The machine's daemon takes it from FELAGI_TOKEN, and from FELAGI_SERVER_URL: {machine}\n  \
         3. give it work:\n       \
         ostler issue create \"Fix the failing test\" --assign Freya{server}"
    ))
}

/// The address for other machines, when any can come.
fn elsewhere(here: &Here<'_>) -> Option<String> {
    let ip = here.address.ip().to_canonical();
    match () {
        () if here.is_behind_proxy || ip.is_unspecified() => Some(REACHED.to_owned()),
        () if ip.is_loopback() => None,
        () => Some(here.url.to_owned()),
    }
}

/// What the commands need to find the same database.
fn flags(args: &DatabaseArgs) -> String {
    let mut flags = String::new();
    if let Some(database) = &args.database {
        // It may have a password in it, and this text is kept in logs.
        let is_shown = database.starts_with("sqlite:");
        let database = if is_shown { quoted(database) } else { "…".to_owned() };
        flags.push_str(&format!(" --database {database}"));
    }
    if let Some(config) = &args.config {
        flags.push_str(&format!(" --config {}", quoted(config.as_str())));
    }
    flags
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.:_-=@%+,[]".contains(c);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_that_others_can_reach_is_named_to_them() {
        let said = |address: &str, is_behind_proxy| {
            let database = &DatabaseArgs { database: None, config: None };
            let address = address.parse().unwrap();
            elsewhere(&Here {
                url: "https://u",
                address,
                is_noted: true,
                is_behind_proxy,
                database,
            })
        };
        assert_eq!(said("127.0.0.1:1", false), None);
        assert_eq!(said("[::1]:1", false), None);
        assert_eq!(said("127.0.0.1:1", true).as_deref(), Some(REACHED));
        assert_eq!(said("0.0.0.0:1", false).as_deref(), Some(REACHED));
        assert_eq!(said("[::]:1", false).as_deref(), Some(REACHED));
        assert_eq!(said("10.1.2.3:1", false).as_deref(), Some("https://u"));
    }

    #[test]
    fn flags_are_repeated_for_the_shell_without_a_password() {
        let flags = |database: &str, config: Option<&str>| {
            flags(&DatabaseArgs {
                database: Some(database.to_owned()),
                config: config.map(Into::into),
            })
        };
        assert_eq!(flags("sqlite:/d/o.db", None), " --database sqlite:/d/o.db");
        assert_eq!(flags("postgres://u:p@h/d", None), " --database …");
        assert_eq!(
            flags("sqlite:/my d/o.db", Some("/it's")),
            r" --database 'sqlite:/my d/o.db' --config '/it'\''s'"
        );
    }
}
