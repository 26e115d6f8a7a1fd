//! What was once found or thought of as hostile, again: the seeds of the fuzz targets through the functions that
//! these call. Absent on purpose: finding more, which `.ci/nightly` does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ostler_server::fuzzing;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 7] = [
    ("server_artifacts", fuzzing::fuzz_artifacts),
    ("server_html", fuzzing::fuzz_html),
    ("server_markdown", fuzzing::fuzz_markdown),
    ("server_messages", fuzzing::fuzz_messages),
    ("server_requests", fuzzing::fuzz_requests),
    ("server_skill", fuzzing::fuzz_skill),
    ("server_thread", fuzzing::fuzz_thread),
];

/// Names in a folder that begin with `server_`, without their endings.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names = entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("server_")).collect()
}

#[test]
fn the_seeds_of_every_fuzz_target_break_no_promise() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz.join("targets")), known);
    assert_eq!(names(&fuzz.join("seeds")), known);
    for (name, target) in TARGETS {
        target(b"");
        let seeds = fs::read_dir(fuzz.join("seeds").join(name)).unwrap();
        let files: Vec<_> = seeds.map(|seed| seed.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name}");
        for file in files {
            let seed = fs::read(&file).unwrap();
            if let Err(broken) = std::panic::catch_unwind(|| target(&seed)) {
                panic!("{}: {:?}", file.display(), broken.downcast_ref::<String>());
            }
        }
    }
}
