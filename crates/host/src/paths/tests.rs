//! Tests of the places.

use std::os::unix::ffi::OsStringExt as _;

use ostler_core::id::TaskId;
use proptest::prelude::*;

use super::*;

fn paths(vars: &[(&str, &str)]) -> Result<Paths, PathsError> {
    Paths::from_env(&vars.iter().copied().collect())
}

fn run(task: &str, attempt: u32) -> RunId {
    RunId { task: TaskId::new(task).unwrap(), attempt }
}

#[test]
fn r_02_without_configuration_the_socket_is_under_home() {
    let paths = paths(&[("HOME", "/home/u")]).unwrap();
    assert_eq!(paths.socket(), "/home/u/.haskell-agent/runtime/daemon.sock");
    assert_eq!(paths.state_dir, "/home/u/.local/state/ostler");
    assert_eq!(paths.config_file, "/home/u/.config/ostler/config.toml");
    assert!(!paths.config_is_explicit);
}

#[test]
fn r_03_r_04_the_variable_moves_socket_and_journal_together() {
    let paths = paths(&[("HOME", "/home/u"), (RUNTIME_DIR_ENV, "/run/u/x")]).unwrap();
    assert_eq!(paths.socket(), "/run/u/x/daemon.sock");
    assert_eq!(paths.journal_dir(), "/run/u/x/journal");
    assert_eq!(paths.archive_dir(), "/run/u/x/archive");
}

#[test]
fn state_and_configuration_follow_their_variables_before_xdg() {
    let xdg = [("HOME", "/h"), ("XDG_STATE_HOME", "/s"), ("XDG_CONFIG_HOME", "/c")];
    let by_xdg = paths(&xdg).unwrap();
    assert_eq!(by_xdg.runs_dir(), "/s/ostler/runs");
    assert_eq!(by_xdg.config_file, "/c/ostler/config.toml");
    let own = [xdg.as_slice(), &[(STATE_DIR_ENV, "/o"), (CONFIG_FILE_ENV, "/f.toml")]].concat();
    let own = paths(&own).unwrap();
    assert_eq!(own.runs_dir(), "/o/runs");
    assert_eq!(own.config_file, "/f.toml");
    assert!(own.config_is_explicit);
}

#[test]
fn home_is_needed_only_for_what_no_variable_names() {
    let all = [(RUNTIME_DIR_ENV, "/r"), (STATE_DIR_ENV, "/s"), (CONFIG_FILE_ENV, "/c")];
    assert_eq!(paths(&all).unwrap().home, None);
    for missing in 0..all.len() {
        let mut some = all.to_vec();
        let (name, _) = some.remove(missing);
        let error = paths(&some).unwrap_err();
        assert!(matches!(error, PathsError::NoHome { instead, .. } if instead == name), "{error}");
        assert!(error.hint().contains(name), "{}", error.hint());
    }
}

#[test]
fn a_relative_value_is_an_error_and_an_empty_one_is_absent() {
    for name in ["HOME", RUNTIME_DIR_ENV, STATE_DIR_ENV, CONFIG_FILE_ENV, "XDG_STATE_HOME"] {
        let mut vars = vec![("HOME", "/home/u")];
        vars.push((name, "some/where"));
        let error = paths(&vars).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{name} must be an absolute path, and is \"some/where\"")
        );
    }
    let unset = paths(&[("HOME", "/h"), (RUNTIME_DIR_ENV, ""), ("XDG_STATE_HOME", "")]).unwrap();
    assert_eq!(unset, paths(&[("HOME", "/h")]).unwrap());
}

#[test]
fn a_value_that_is_no_utf_8_is_an_error_that_names_the_variable() {
    let bad = OsString::from_vec(vec![b'/', 0xff]);
    let env: Environment =
        [(OsString::from("HOME"), OsString::from("/h")), (RUNTIME_DIR_ENV.into(), bad)]
            .into_iter()
            .collect();
    let error = Paths::from_env(&env).unwrap_err();
    assert_eq!(error, PathsError::NotUtf8 { name: RUNTIME_DIR_ENV });
}

#[test]
fn the_environment_never_shows_its_values() {
    let env: Environment = [("API_KEY", "sk-1234")].into_iter().collect();
    let shown = format!("{env:?}");
    assert!(shown.contains("API_KEY") && !shown.contains("sk-1234"), "{shown}");
}

#[test]
fn a_run_directory_is_named_by_a_safe_id_or_by_its_hash() {
    assert_eq!(run_dir_name(&run("inspect-1_B", 2)), "inspect-1_B.2");
    assert_eq!(run_dir_name(&run(&"a".repeat(64), 1)), format!("{}.1", "a".repeat(64)));
    // sha256("a/b")
    assert_eq!(run_dir_name(&run("a/b", 1)), "x-c14cddc033f64b9dea80ea675cf280a0.1");
    for unsafe_id in ["..", ".", "a b", "é", &"a".repeat(65), "x-c14cddc033f64b9dea80ea675cf280a0"]
    {
        let name = run_dir_name(&run(unsafe_id, 7));
        assert!(name.starts_with("x-") && name.ends_with(".7") && name.len() == 36, "{name}");
        assert_ne!(name, format!("{unsafe_id}.7"));
    }
}

proptest! {
    #[test]
    fn a_run_directory_name_is_one_safe_component_and_different_ids_differ(
        a in "\\PC{1,80}", b in "\\PC{1,80}", attempt in 1u32..,
    ) {
        let (Ok(a), Ok(b)) = (TaskId::new(&a), TaskId::new(&b)) else { return Ok(()) };
        let name = |task: &TaskId| run_dir_name(&RunId { task: task.clone(), attempt });
        let safe = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        prop_assert!(name(&a).chars().all(safe) && !name(&a).starts_with('.'));
        prop_assert!(name(&a).len() <= 75);
        prop_assert_eq!(name(&a) == name(&b), a == b);
    }
}
