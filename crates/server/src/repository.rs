//! Addresses of repositories, judged when they are saved (F-051), and the name of a checkout (F-049).
//!
//! Pure. An address comes from a person, goes to `git` on somebody's machine, and is shown to everybody in
//! the workspace: so it holds no credential, nothing that `git` takes for an option or a program, and nothing
//! that two readers could read differently. Absent on purpose: whether there is such a repository.

use ring::digest;

/// Bytes of an address.
pub const URL_BYTES_MAX: usize = 2_048;
/// Bytes of a checkout's name; it is the name of a folder.
pub const NAME_BYTES_MAX: usize = 100;
/// Bytes of a host's name.
const HOST_BYTES_MAX: usize = 253;
/// Bytes of the user of an SSH address. A longer one is taken for a secret.
const USER_BYTES_MAX: usize = 32;
/// Digits of the mark that tells two repositories with one name apart.
const MARK_DIGITS: usize = 8;

/// Why an address is refused, as what follows the field's name. Never repeats the address, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RepositoryFault {
    /// Nothing there, or too long.
    #[error("must have 1 to {URL_BYTES_MAX} bytes")]
    Length,
    /// A credential in it.
    #[error(
        "must not hold a user name, password or token; machines use their own credentials \
         (`git@` before an SSH host is fine)"
    )]
    Credential,
    /// A character that does not belong there.
    #[error("must not hold spaces, control or other special characters")]
    Character,
    /// Not one of the known ways.
    #[error("must begin with https://, http://, ssh:// or git://, or be git@host:path")]
    Scheme,
    /// No host, or not one.
    #[error("needs the name of a host")]
    Host,
    /// No path, or one that climbs.
    #[error("needs a path such as owner/repository")]
    Path,
}

/// A repository's address that may be stored and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// As it was written, without space around it.
    pub url: String,
    /// Owner and repository, joined: the name of the folder of a checkout. See [`Repository::name_beside`].
    pub name: String,
    /// Owner and repository on GitHub, when it lies there.
    pub github: Option<(String, String)>,
}

impl Repository {
    /// Judges the address.
    pub fn parse(text: &str) -> Result<Self, RepositoryFault> {
        let url = text.trim_matches(' ');
        if url.is_empty() || url.len() > URL_BYTES_MAX {
            return Err(RepositoryFault::Length);
        }
        let (scheme, host, path) = split(url)?;
        let host = check_host(host)?;
        let segments = check_path(path)?;
        let (repo, owners) = segments.split_last().ok_or(RepositoryFault::Path)?;
        let repo = without_git(repo);
        if repo.is_empty() {
            return Err(RepositoryFault::Path);
        }
        let mut parts = owners.to_vec();
        parts.push(repo);
        let name = folder_name(&parts, url).ok_or(RepositoryFault::Path)?;
        let on_github = ["github.com", "www.github.com", "ssh.github.com"].contains(&host.as_str());
        let known =
            |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let github = match parts.as_slice() {
            [owner, repo] if on_github && scheme != "git" && known(owner) && known(repo) => {
                Some(((*owner).to_owned(), (*repo).to_owned()))
            }
            _ => None,
        };
        Ok(Self { url: url.to_owned(), name, github })
    }

    /// The name beside others that are taken in the same workspace (compare ignoring case): `a-b/c` and
    /// `a/b-c` have one name, and so have repositories of one owner on two hosts. Then a mark made from the
    /// address is put behind it. Asked once, when the repository is saved: the name never changes afterwards.
    pub fn name_beside(&self, is_taken: impl Fn(&str) -> bool) -> String {
        if is_taken(&self.name) { marked(&self.name, &self.url) } else { self.name.clone() }
    }
}

/// Scheme, authority without user, and path.
fn split(url: &str) -> Result<(&'static str, &str, &str), RepositoryFault> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return split_scp(url).map(|(host, path)| ("ssh", host, path));
    };
    let known = ["https", "http", "ssh", "git"]
        .into_iter()
        .find(|known| scheme.eq_ignore_ascii_case(known));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // Looked for first, also behind a wrong scheme or with odd characters: this is the refusal that helps.
    let host = match authority.rsplit_once('@') {
        Some((user, host)) if known == Some("ssh") && is_plain_user(user) => host,
        Some(_) => return Err(RepositoryFault::Credential),
        None => authority,
    };
    if path.contains(['@', '?', '#']) {
        return Err(RepositoryFault::Credential);
    }
    Ok((known.ok_or(RepositoryFault::Scheme)?, host, path))
}

/// `git@host:owner/repository`.
fn split_scp(url: &str) -> Result<(&str, &str), RepositoryFault> {
    let (host, path) = url.split_once(':').ok_or(RepositoryFault::Scheme)?;
    if path.contains('@') {
        return Err(RepositoryFault::Credential);
    }
    // `ext::program`, a drive, a file with a colon in its name.
    if host.contains('/') || host.len() < 2 {
        return Err(RepositoryFault::Scheme);
    }
    let host = match host.rsplit_once('@') {
        Some((user, host)) if is_plain_user(user) => host,
        Some(_) => return Err(RepositoryFault::Credential),
        // Without a user it could be anything with a colon.
        None if host.contains('.') => host,
        None => return Err(RepositoryFault::Scheme),
    };
    if host.contains(':') || path.contains(['?', '#']) {
        return Err(RepositoryFault::Character);
    }
    Ok((host, path.strip_prefix('/').unwrap_or(path)))
}

/// An account of an SSH server, as `git` or `gitea`; not something that could be a token.
fn is_plain_user(user: &str) -> bool {
    let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    user.len() <= USER_BYTES_MAX
        && user.starts_with(|c: char| c.is_ascii_lowercase())
        && user.bytes().all(letters)
}

/// The host in lower case, without its port.
fn check_host(authority: &str) -> Result<String, RepositoryFault> {
    if !authority.is_ascii()
        || authority.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\')
    {
        return Err(RepositoryFault::Character);
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            address.parse::<std::net::Ipv6Addr>().map_err(|_| RepositoryFault::Host)?;
            (address, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")))
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
            let edges = |label: &str| !label.is_empty() && !label.starts_with('-');
            if host.len() > HOST_BYTES_MAX
                || !host.bytes().all(letters)
                || !host.split('.').all(edges)
            {
                return Err(RepositoryFault::Host);
            }
            (host, Some(port))
        }
    };
    let port = port.ok_or(RepositoryFault::Host)?;
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    if port.is_empty() || digits && port.parse::<u16>().is_ok_and(|port| port > 0) {
        Ok(host.to_ascii_lowercase())
    } else {
        Err(RepositoryFault::Host)
    }
}

/// The parts of the path.
fn check_path(path: &str) -> Result<Vec<&str>, RepositoryFault> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"-._~+%".contains(&b);
    if !path.bytes().all(|b| letters(b) || b == b'/') || has_odd_escape(path) {
        return Err(RepositoryFault::Character);
    }
    let segments: Vec<&str> = path.split('/').collect();
    let odd =
        |part: &&str| part.is_empty() || *part == "." || *part == ".." || part.starts_with('-');
    if segments.iter().any(odd) { Err(RepositoryFault::Path) } else { Ok(segments) }
}

/// Whether a `%` stands for something that would be refused in clear, or for nothing.
fn has_odd_escape(path: &str) -> bool {
    path.split('%').skip(1).any(|rest| {
        let byte = rest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_none_or(|b| b.is_ascii_control() || b"./\\:@%".contains(&b))
    })
}

fn without_git(repo: &str) -> &str {
    let cut = repo.len().saturating_sub(4);
    match repo.split_at_checked(cut) {
        Some((name, end)) if end.eq_ignore_ascii_case(".git") => name,
        _ => repo,
    }
}

/// The parts as one name of a folder: everything before the last is the owner.
fn folder_name(parts: &[&str], url: &str) -> Option<String> {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = parts.join("-").chars().map(safe).collect();
    let name = name.trim_start_matches(['.', '-']).trim_end_matches('.');
    if name.is_empty() {
        return None;
    }
    Some(if name.len() > NAME_BYTES_MAX { marked(name, url) } else { name.to_owned() })
}

/// The name, cut where it must be, with a mark made from the address behind it.
fn marked(name: &str, url: &str) -> String {
    let digest = digest::digest(&digest::SHA256, url.as_bytes());
    let mark: String =
        digest.as_ref().iter().take(MARK_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    let room = NAME_BYTES_MAX - MARK_DIGITS - 1;
    format!("{}-{mark}", name.get(..room).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(url: &str) -> RepositoryFault {
        Repository::parse(url).expect_err(url)
    }

    #[test]
    fn f_049_the_name_is_owner_and_repository() {
        for (url, name) in [
            ("https://github.com/acme/api.git", "acme-api"),
            ("https://github.com/acme/api", "acme-api"),
            ("https://github.com/acme/api/", "acme-api"),
            (" https://github.com/acme/api.GIT ", "acme-api"),
            ("git@github.com:acme/app.git", "acme-app"),
            ("ssh://git@github.com/acme/app.git", "acme-app"),
            ("ssh://git@host.example:2222/acme/app", "acme-app"),
            ("https://gitlab.example/group/sub/repo.git", "group-sub-repo"),
            ("git://host.example/acme/app.git", "acme-app"),
            ("http://127.0.0.1:8080/acme/app.git", "acme-app"),
            ("https://[::1]:8443/acme/app.git", "acme-app"),
            ("git@host.example:/srv/git/app.git", "srv-git-app"),
            ("host.example:acme/app", "acme-app"),
            ("gitea@host.example:app.git", "app"),
            ("https://git.sr.ht/~acme/app", "acme-app"),
            ("https://dev.azure.com/acme/My%20Project/_git/app", "acme-My-20Project-_git-app"),
            ("https://github.com/acme/.github", "acme-.github"),
            ("https://github.com/Acme/a.b_c+d", "Acme-a.b_c-d"),
        ] {
            let repository =
                Repository::parse(url).unwrap_or_else(|fault| panic!("{url}: {fault}"));
            assert_eq!(repository.name, name, "{url}");
            assert_eq!(repository.url, url.trim());
        }
    }

    #[test]
    fn f_049_two_owners_with_one_repository_name_get_two_names() {
        let name = |url: &str| Repository::parse(url).unwrap().name;
        assert_ne!(name("https://github.com/acme/api"), name("https://github.com/other/api"));
        assert_ne!(name("https://a.example/x/acme/api"), name("https://a.example/y/acme/api"));
    }

    #[test]
    fn f_049_a_name_that_is_taken_gets_a_mark_that_stays() {
        let one = Repository::parse("https://github.com/a-b/c").unwrap();
        let two = Repository::parse("https://github.com/a/b-c").unwrap();
        assert_eq!(one.name, two.name);
        assert_eq!(one.name_beside(|_| false), "a-b-c");
        let beside = two.name_beside(|name| name == one.name);
        assert_eq!(beside.len(), "a-b-c".len() + 9);
        assert!(beside.starts_with("a-b-c-"));
        assert_eq!(beside, two.name_beside(|_| true));
        assert_ne!(beside, one.name_beside(|_| true));
    }

    #[test]
    fn f_049_a_name_is_bounded_and_a_folder_name() {
        let long = |end: &str| format!("https://a.example/{}/{end}", "x".repeat(300));
        let (one, two) =
            (Repository::parse(&long("a")).unwrap(), Repository::parse(&long("b")).unwrap());
        assert_eq!((one.name.len(), two.name.len()), (NAME_BYTES_MAX, NAME_BYTES_MAX));
        assert_ne!(one.name, two.name);
        assert_eq!(one.name_beside(|_| true).len(), NAME_BYTES_MAX);
        for url in [
            "https://a.example/.a/b",
            "https://a.example/~/b",
            "https://a.example/a/b..",
            "git@h.example:%c3%a4/b",
        ] {
            let name = Repository::parse(url).unwrap().name;
            let safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            assert!(safe && !name.starts_with(['.', '-']) && !name.ends_with('.'), "{url}: {name}");
        }
    }

    #[test]
    fn f_051_a_credential_is_refused_and_never_repeated() {
        for url in [
            "https://kari:hunter2@github.com/acme/api.git",
            "https://hunter2@github.com/acme/api.git",
            "https://:hunter2@github.com/acme/api.git",
            "https://hunter2:@github.com/acme/api.git",
            "https://@github.com/hunter2/api.git",
            "https://x-access-token:hunter2@github.com/acme/api.git",
            "HTTPS://hunter2@github.com/acme/api.git",
            "http://hunter2@github.com/acme/api.git",
            "git://hunter2@github.com/acme/api.git",
            "ftp://kari:hunter2@a.example/acme/api.git",
            "https://a.example:pass@hunter2/acme/api",
            "https://a b:hunter2@github.com/acme/api.git",
            "https://hunter2@a@github.com/acme/api.git",
            "ssh://git:hunter2@github.com/acme/api.git",
            "ssh://Hunter2_hunter2@github.com/acme/api.git",
            "git:hunter2@github.com:acme/api.git",
            "hunter2:x@github.com:acme/api.git",
            "ghp_hunter2@github.com:acme/api.git",
            "https://github.com/acme/api.git?token=hunter2",
            "https://github.com/acme/api.git#hunter2",
            "https://github.com/kari:hunter2@acme/api",
        ] {
            let fault = fault(url);
            assert_eq!(fault, RepositoryFault::Credential, "{url}");
            assert!(!format!("{fault} {fault:?}").contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn what_git_takes_for_something_else_is_refused() {
        for url in [
            "ext::sh -c id",
            "ext::x",
            "fd::17",
            "file:///etc/passwd",
            "/srv/git/a.git",
            "./a",
            "../a/b",
            "a/b",
            "a/b:c",
            "C:/a/b",
            "C:\\a\\b",
            "c:a",
            "localhost:a/b",
            "javascript://a.example/a/b",
            "ftp://a.example/a/b",
            "github.com/acme/api",
        ] {
            assert_eq!(fault(url), RepositoryFault::Scheme, "{url}");
        }
        for url in [
            "-u",
            "--upload-pack=id",
            "-oProxyCommand=id:a/b",
            "https://-a.example/a/b",
            "ssh://-oProxyCommand=id/a",
        ] {
            Repository::parse(url).expect_err(url);
        }
        assert_eq!(fault("git@-a.example:a/b"), RepositoryFault::Host);
        assert_eq!(fault("git@a.example:-a/b"), RepositoryFault::Path);
        assert_eq!(fault("https://a.example/a/-b"), RepositoryFault::Path);
    }

    #[test]
    fn odd_characters_and_paths_are_refused() {
        for url in [
            "https://a.example/a b",
            "https://a.example/a\nb",
            "https://a.example/a\0",
            "https://a.example/a\\b",
            "https://a.example\\/a/b",
            "https://a.example/ä/b",
            "https://ä.example/a/b",
            "https://a.example/a/$(id)",
            "https://a.example/a/`id`",
            "https://a.example/a;b",
            "https://a.example/a/%2e%2e/b",
            "https://a.example/a/%00",
            "https://a.example/a/%2",
            "https://a.example/a/%zz",
            "https://a.example/a/%+1",
            "git@a.example:a/b?c",
            "a.example::a/b",
        ] {
            assert_eq!(fault(url), RepositoryFault::Character, "{url}");
        }
        for url in [
            "https://a.example",
            "https://a.example/",
            "https://a.example//a",
            "https://a.example/a/../b",
        ] {
            assert_eq!(fault(url), RepositoryFault::Path, "{url}");
        }
        for url in [
            "https://a.example/./a",
            "https://a.example/a//",
            "https://a.example/.git",
            "git@a.example:",
        ] {
            assert_eq!(fault(url), RepositoryFault::Path, "{url}");
        }
        for url in [
            "https:///a/b",
            "https://:80/a",
            "https://a.example:0/a",
            "https://a.example:65536/a",
            "https://a..b/a",
        ] {
            assert_eq!(fault(url), RepositoryFault::Host, "{url}");
        }
        for url in
            ["https://a.example:+80/a", "https://[::1/a", "https://[::g]/a", "https://[::1]x/a"]
        {
            assert_eq!(fault(url), RepositoryFault::Host, "{url}");
        }
    }

    #[test]
    fn an_address_has_a_bound() {
        let most = format!("https://a.example/{}", "x".repeat(URL_BYTES_MAX - 18));
        assert!(Repository::parse(&most).is_ok());
        assert_eq!(fault(&(most + "x")), RepositoryFault::Length);
        assert_eq!(fault(""), RepositoryFault::Length);
        assert_eq!(fault("   "), RepositoryFault::Length);
    }

    #[test]
    fn what_lies_on_github_is_known_by_owner_and_repository() {
        let github = |url: &str| Repository::parse(url).unwrap().github;
        let expected = Some(("Acme".to_owned(), "api".to_owned()));
        for url in [
            "https://github.com/Acme/api.git",
            "git@GitHub.com:Acme/api",
            "ssh://git@ssh.github.com:443/Acme/api.git",
        ] {
            assert_eq!(github(url), expected, "{url}");
        }
        for url in [
            "https://github.com.evil.example/Acme/api",
            "https://notgithub.com/Acme/api",
            "https://gitlab.com/Acme/api",
            "https://github.com/Acme/api/x",
            "https://github.com/Acme",
            "https://github.com/~Acme/a%20b",
            "https://evil.example/github.com/Acme",
        ] {
            assert_eq!(github(url), None, "{url}");
        }
    }
}
