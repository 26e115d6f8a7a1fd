//! Keys, sealed values, lease tokens and credentials.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Barrier;

use super::*;

fn keyring(byte: u8) -> Keyring {
    Keyring::new(&[byte; 32]).unwrap()
}

#[test]
fn a_sealed_value_opens_with_its_key_and_purpose_only() {
    let sealed = keyring(1).seal(Purpose::AgentEnv(1), b"TOKEN=hunter2").unwrap();
    assert_eq!(keyring(1).open(Purpose::AgentEnv(1), &sealed).unwrap(), b"TOKEN=hunter2");
    assert_eq!(keyring(2).open(Purpose::AgentEnv(1), &sealed), Err(OpenFault::Key));
    for other in [Purpose::AgentEnv(2), Purpose::AgentMcp(1), Purpose::GithubKey(1)] {
        assert_eq!(keyring(1).open(other, &sealed), Err(OpenFault::Key), "{other}");
    }
}

#[test]
fn an_empty_value_can_be_sealed_and_no_two_are_alike() {
    let keys = keyring(1);
    let (one, two) = (
        keys.seal(Purpose::Other("p"), b"").unwrap(),
        keys.seal(Purpose::Other("p"), b"").unwrap(),
    );
    assert_ne!(one, two);
    assert_eq!(keys.open(Purpose::Other("p"), &one).unwrap(), b"");
    assert_eq!(keys.open(Purpose::Other("p"), &two).unwrap(), b"");
}

#[test]
fn a_changed_or_cut_value_does_not_open() {
    let keys = keyring(1);
    let sealed = keys.seal(Purpose::Other("p"), b"some text").unwrap();
    for at in 0..sealed.len() {
        let mut bytes = sealed.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(keys.open(Purpose::Other("p"), &changed).is_err(), "changed at {at}");
        assert!(keys.open(Purpose::Other("p"), &sealed[..at]).is_err(), "cut at {at}");
    }
    for odd in ["", "s1.", "s2.AAAA", "s1.é", "s1.AAAA", "plain text"] {
        assert_eq!(keys.open(Purpose::Other("p"), odd), Err(OpenFault::Format), "{odd}");
    }
}

#[test]
fn a_sealed_value_shows_nothing_of_the_plain_one() {
    let sealed = keyring(1).seal(Purpose::Other("p"), b"hunter2hunter2").unwrap();
    assert!(!sealed.contains("hunter2"));
    assert!(sealed.starts_with("s1."));
}

/// What version 1 sealed stays readable. The text was made by another program (Python, `cryptography`).
#[test]
fn a_value_sealed_by_an_earlier_server_opens() {
    let sealed = include_str!("sealed-v1.txt").trim();
    assert_eq!(keyring(7).open(Purpose::Other("golden"), sealed).unwrap(), b"kept for years");
}

#[test]
fn a_key_is_read_from_hex_and_from_both_kinds_of_base64() {
    let bytes: Vec<u8> = (0..32).map(|n| n * 8 + 3).collect();
    let master: [u8; 32] = bytes.clone().try_into().unwrap();
    let expected = Keyring::new(&master).unwrap().fingerprint().to_owned();
    let texts = [
        hex(&bytes),
        hex(&bytes).to_uppercase(),
        format!("  {}\n", hex(&bytes)),
        base64::engine::general_purpose::STANDARD.encode(&bytes),
        STANDARD_NO_PAD.encode(&bytes),
        URL_SAFE_NO_PAD.encode(&bytes),
    ];
    for text in texts {
        assert_eq!(Keyring::from_text(&text).unwrap().fingerprint(), expected, "{text}");
    }
}

#[test]
fn a_key_of_another_length_or_alphabet_is_refused_and_not_repeated() {
    let odd =
        ["", "hunter2", &"ab".repeat(31), &"ab".repeat(33), &"zz".repeat(32), &"é".repeat(32)];
    for text in odd {
        let error = Keyring::from_text(text).unwrap_err();
        assert!(matches!(error, KeyFault::Text), "{text}");
        assert!(text.is_empty() || !format!("{error} {error:?}").contains(text), "{text}");
    }
}

#[test]
fn f_059_a_lease_token_depends_on_key_task_attempt_and_nonce() {
    let keys = keyring(1);
    let tokens = [
        keys.lease_token("01k", 1, &[0; 16]),
        keys.lease_token("01k", 2, &[0; 16]),
        keys.lease_token("01l", 1, &[0; 16]),
        keys.lease_token("01k", 1, &[1; 16]),
        keyring(2).lease_token("01k", 1, &[0; 16]),
    ];
    assert_eq!(BTreeSet::from(tokens.clone()).len(), tokens.len());
    assert_eq!(tokens[0], keyring(1).lease_token("01k", 1, &[0; 16]), "asked again it is the same");
    assert!(
        tokens
            .iter()
            .all(|token| token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit()))
    );
}

#[test]
fn the_fingerprint_tells_keys_apart() {
    assert_eq!(keyring(1).fingerprint(), keyring(1).fingerprint());
    assert_ne!(keyring(1).fingerprint(), keyring(2).fingerprint());
    assert_eq!(keyring(1).fingerprint().len(), 32);
}

#[test]
fn f_005_a_token_is_hashed_with_sha_256() {
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hex(&hash_token("abc")), expected);
}

#[test]
fn f_005_a_token_has_32_unbiased_letters_and_twelve_are_shown() {
    let mut counts = std::collections::BTreeMap::<char, u32>::new();
    let mut seen = BTreeSet::new();
    for _ in 0..2_000 {
        let token = new_token("fdt_").unwrap();
        let letters = token.strip_prefix("fdt_").unwrap();
        assert_eq!(letters.len(), 32);
        letters.chars().for_each(|letter| *counts.entry(letter).or_default() += 1);
        assert_eq!(token_prefix(&token), token[..12]);
        assert!(seen.insert(token));
    }
    // 64,000 letters: 1,032 of each, and a deviation of 6 sigma is 190. A plain `% 62` gives 8 letters 1,250.
    assert_eq!(counts.len(), 62);
    for (letter, count) in counts {
        assert!((842..1_222).contains(&count), "{letter}: {count}");
    }
}

#[test]
fn each_letter_stands_for_four_bytes_and_the_rest_is_thrown_away() {
    let mut counts = std::collections::BTreeMap::<char, u32>::new();
    (0..=u8::MAX).filter_map(letter).for_each(|letter| *counts.entry(letter).or_default() += 1);
    assert_eq!(counts.len(), 62);
    assert!(counts.values().all(|count| *count == 4));
}

#[test]
fn debug_shows_no_secret() {
    let keys = keyring(b'k');
    let shown = format!("{keys:?} {:?}", Secret::new("hunter2".to_owned()));
    assert_eq!(shown, "Keyring([keys redacted]) Secret([redacted])");
}

#[test]
fn a_key_file_is_made_once_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let first = Keyring::from_file(&file).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let second = Keyring::from_file(&file).unwrap();
    assert_eq!(first.fingerprint(), second.fingerprint());
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert_eq!(Keyring::from_text(&text).unwrap().fingerprint(), first.fingerprint());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays behind");
}

#[test]
fn servers_that_start_at_once_get_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let start = Barrier::new(8);
    let prints: BTreeSet<String> = std::thread::scope(|scope| {
        let one = || {
            start.wait();
            Keyring::from_file(&file).unwrap().fingerprint().to_owned()
        };
        let started: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(prints.len(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_key_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    Keyring::from_file(&file).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o601] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let error = Keyring::from_file(&file).unwrap_err();
        assert!(matches!(error, KeyFault::Shared { .. }), "{mode:o}: {error}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(Keyring::from_file(&file).is_ok());
}

#[test]
fn a_key_file_with_something_else_in_it_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    Keyring::from_file(&file).unwrap();
    let long = format!("{}{}", " ".repeat(300), "ab".repeat(32));
    for content in [&b""[..], b"hunter2", b"abcd", &[0xff; 32], long.as_bytes()] {
        fs::write(&file, content).unwrap();
        let error = Keyring::from_file(&file).unwrap_err();
        assert!(matches!(error, KeyFault::Content { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert_eq!(fs::read(&file).unwrap(), content);
    }
}

#[test]
fn a_link_a_folder_or_a_pipe_is_no_key_file() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    Keyring::from_file(&real).unwrap();
    let link = folder.path().join("link");
    symlink(&real, &link).unwrap();
    let dangling = folder.path().join("dangling");
    symlink(folder.path().join("nowhere"), &dangling).unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for odd in [link.as_path(), &dangling, &pipe, folder.path()] {
        let error = Keyring::from_file(odd).unwrap_err();
        assert!(matches!(error, KeyFault::NotAFile { .. }), "{}: {error}", odd.display());
    }
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn a_key_file_in_no_folder_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("absent").join("key");
    let error = Keyring::from_file(&file).unwrap_err();
    assert!(matches!(error, KeyFault::Io { doing: "make", .. }), "{error}");
    assert!(error.to_string().contains("absent"));
}
