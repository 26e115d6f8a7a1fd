//! Names of skills and paths of their files, judged when they are saved (F-037).
//!
//! Pure. A daemon writes these files into a folder on somebody's machine and judges them again there
//! (D-25); this is the server's half. What is refused here is what any of the usual file systems would take
//! for another place, or for the same file as another one. Absent on purpose: where a skill's files land.

use std::collections::{BTreeMap, BTreeSet};

use unicode_normalization::UnicodeNormalization as _;

/// Characters of a skill's name.
pub const SKILL_NAME_CHARS_MAX: usize = 64;
/// Files of one skill.
pub const SKILL_FILES_MAX: usize = 100;
/// Bytes of the path of a skill's file.
pub const SKILL_PATH_BYTES_MAX: usize = 512;
/// Bytes of one part of such a path: what file systems take.
const PATH_PART_BYTES_MAX: usize = 255;
/// Parts of such a path.
const PATH_PARTS_MAX: usize = 16;
/// Bytes of one file of a skill, and of the skill's own text.
pub const SKILL_FILE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a skill with all its files: skills travel in the envelope of each claim.
pub const SKILL_BYTES_MAX: usize = 1024 * 1024;

/// What stands for a NUL in texts that come as JSON.
const NUL_SHOWN: char = '\u{2400}';
/// What a daemon calls the skill's own text in its folder, so that no file may have the name.
const OWN_FILE: &str = "skill.md";

/// Why a path is refused, as what follows the field's name. Never repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// Nothing there.
    #[error("must not be empty")]
    Empty,
    /// Longer than the bounds.
    #[error(
        "must not be longer than {SKILL_PATH_BYTES_MAX} bytes or have more than {PATH_PARTS_MAX} parts"
    )]
    TooLong,
    /// From a root or a drive.
    #[error("must be relative")]
    Absolute,
    /// `..`, `.`, an empty part.
    #[error("must not contain `.`, `..` or an empty part")]
    Climbs,
    /// A character that some system takes for something else.
    #[error("must not contain a backslash, a colon, a control character or an invisible one")]
    Character,
    /// A part begins or ends in a way that some system drops.
    #[error("must have no part that begins with a space or ends with a space or a dot")]
    Edge,
    /// A name with a meaning of its own.
    #[error("must not use a name with a meaning of its own (`.git`, `SKILL.md`)")]
    Reserved,
}

/// Why a skill is refused, as what follows the field's name, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillFault {
    /// The name cannot be a folder's.
    #[error(
        "must be 1 to {SKILL_NAME_CHARS_MAX} letters, digits, `-`, `_` and `.`, the first and the last one a letter \
         or digit"
    )]
    Name,
    /// The skill's own text is too long or holds NUL.
    #[error("must have at most {SKILL_FILE_BYTES_MAX} bytes and no NUL")]
    Content,
    /// Too many files.
    #[error("must be at most {SKILL_FILES_MAX}")]
    Files,
    /// All together too long.
    #[error("must have at most {SKILL_BYTES_MAX} bytes together with the skill's text")]
    Total,
    /// A path is refused.
    #[error("{fault}")]
    Path {
        /// Which file, from 0.
        index: usize,
        /// Why.
        fault: PathFault,
    },
    /// A path means the same file as an earlier one, or lies within one.
    #[error("is the path of another file of this skill, in the eyes of some file system")]
    Twice {
        /// Which file, from 0.
        index: usize,
    },
    /// A file is too long or holds NUL.
    #[error("must have at most {SKILL_FILE_BYTES_MAX} bytes and no NUL")]
    FileContent {
        /// Which file, from 0.
        index: usize,
    },
}

impl SkillFault {
    /// The field of the request that is at fault, as in `files.3.path`.
    pub fn field(&self) -> String {
        match self {
            Self::Name => "name".to_owned(),
            Self::Content => "content".to_owned(),
            Self::Files | Self::Total => "files".to_owned(),
            Self::Path { index, .. } | Self::Twice { index } => format!("files.{index}.path"),
            Self::FileContent { index } => format!("files.{index}.content"),
        }
    }
}

/// Judges a skill as it is to be saved: its name, its text, and each file as path and content.
pub fn check(name: &str, content: &str, files: &[(&str, &str)]) -> Result<(), SkillFault> {
    check_name(name)?;
    if !is_text(content) {
        return Err(SkillFault::Content);
    }
    if files.len() > SKILL_FILES_MAX {
        return Err(SkillFault::Files);
    }
    let mut total = content.len();
    let mut places = Places::default();
    for (index, (path, content)) in files.iter().enumerate() {
        check_path(path).map_err(|fault| SkillFault::Path { index, fault })?;
        if !places.take(path) {
            return Err(SkillFault::Twice { index });
        }
        if !is_text(content) {
            return Err(SkillFault::FileContent { index });
        }
        total = total.saturating_add(path.len()).saturating_add(content.len());
    }
    if total > SKILL_BYTES_MAX { Err(SkillFault::Total) } else { Ok(()) }
}

/// A name that is a folder's name everywhere.
pub fn check_name(name: &str) -> Result<(), SkillFault> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let edges = edge(name.bytes().next()) && edge(name.bytes().last());
    let fits = name.len() <= SKILL_NAME_CHARS_MAX && name.bytes().all(inner);
    if fits && edges { Ok(()) } else { Err(SkillFault::Name) }
}

/// The path of a skill's file: relative, downwards, and the same place on every machine.
pub fn check_path(path: &str) -> Result<(), PathFault> {
    check_relative(path)?;
    let reserved = path.split('/').any(|part| part.eq_ignore_ascii_case(".git"));
    if reserved || path.eq_ignore_ascii_case(OWN_FILE) {
        return Err(PathFault::Reserved);
    }
    Ok(())
}

/// A path that is relative and goes downwards only, on every machine.
pub(crate) fn check_relative(path: &str) -> Result<(), PathFault> {
    if path.is_empty() {
        return Err(PathFault::Empty);
    }
    if path.len() > SKILL_PATH_BYTES_MAX || path.split('/').count() > PATH_PARTS_MAX {
        return Err(PathFault::TooLong);
    }
    let drive = path.as_bytes().get(1) == Some(&b':');
    if path.starts_with(['/', '\\', '~']) || drive {
        return Err(PathFault::Absolute);
    }
    if path.contains(|c: char| {
        c.is_control() || c == NUL_SHOWN || c == '\\' || c == ':' || crate::text::is_invisible(c)
    }) {
        return Err(PathFault::Character);
    }
    for part in path.split('/') {
        if matches!(part.trim(), "" | "." | "..") {
            return Err(PathFault::Climbs);
        }
        if part.len() > PATH_PART_BYTES_MAX {
            return Err(PathFault::TooLong);
        }
        if part.trim() != part || part.ends_with('.') {
            return Err(PathFault::Edge);
        }
    }
    Ok(())
}

fn is_text(content: &str) -> bool {
    content.len() <= SKILL_FILE_BYTES_MAX && !content.contains('\0')
}

/// Files and folders of a skill, as a file system that ignores case sees them.
#[derive(Default)]
struct Places {
    /// Each with whether it is a folder.
    seen: BTreeMap<String, bool>,
}

impl Places {
    /// Whether there is room for this file beside the others.
    fn take(&mut self, path: &str) -> bool {
        let folded = fold(path);
        let folders: BTreeSet<&str> =
            folded.match_indices('/').filter_map(|(at, _)| folded.get(..at)).collect();
        if self.seen.contains_key(&folded)
            || folders.iter().any(|at| self.seen.get(*at) == Some(&false))
        {
            return false;
        }
        self.seen.extend(folders.into_iter().map(|folder| (folder.to_owned(), true)));
        self.seen.insert(folded, false);
        true
    }
}

/// Both ways, since some letters are told apart by one only; twice, since a capital `ß` becomes a small one first and
/// `ss` then; and accents as parts of their letters, since some file systems take both ways to write them for one.
fn fold(path: &str) -> String {
    let once = |path: &str| path.to_uppercase().to_lowercase().nfc().collect::<String>();
    once(&once(&path.nfc().collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_037_ordinary_paths_are_taken() {
        for path in [
            "a",
            "examples/rollback.md",
            "a/b/c/d.txt",
            ".hidden",
            "ein Name.md",
            "ä/ö.md",
            "...a",
            "a..b",
        ] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn f_037_what_leaves_the_folder_is_refused() {
        for path in [
            "/",
            "/etc/passwd",
            "//a",
            "\\a",
            "\\\\host\\share",
            "C:\\a",
            "c:/a",
            "C:a",
            "~/.ssh/id",
            "~root",
        ] {
            assert_eq!(check_path(path), Err(PathFault::Absolute), "{path}");
        }
        for path in [
            "..", "../a", "a/..", "a/../b", ".", "./a", "a/./b", "a//b", "a/", " .. /a", "a/ ../b",
            "a/ /b",
        ] {
            assert_eq!(check_path(path), Err(PathFault::Climbs), "{path}");
        }
        assert_eq!(check_path(""), Err(PathFault::Empty));
    }

    #[test]
    fn f_037_what_a_file_system_reads_differently_is_refused() {
        for path in [
            "a\\b",
            "a/..\\b",
            "a\0b",
            "a\nb",
            "a\u{7f}",
            "file:stream",
            "a\u{200b}b",
            "a/.\u{200d}./b",
            "\u{202e}a",
        ] {
            assert_eq!(check_path(path), Err(PathFault::Character), "{path:?}");
        }
        for path in [" a", "a ", "a /b", "a/ b", "a.", "a./b", "...", "a/...", "\u{a0}a"] {
            assert_eq!(check_path(path), Err(PathFault::Edge), "{path:?}");
        }
        for path in [".git", ".git/config", "a/.GIT/hooks/pre-commit", "SKILL.md", "skill.MD"] {
            assert_eq!(check_path(path), Err(PathFault::Reserved), "{path:?}");
        }
    }

    #[test]
    fn f_037_paths_have_bounds() {
        let long = |bytes: usize| vec!["x".repeat(99); 5].join("/") + &"y".repeat(bytes - 499);
        assert_eq!(check_path(&long(SKILL_PATH_BYTES_MAX)), Ok(()));
        assert_eq!(check_path(&long(SKILL_PATH_BYTES_MAX + 1)), Err(PathFault::TooLong));
        assert_eq!(check_path(&"x".repeat(255)), Ok(()));
        assert_eq!(check_path(&"x".repeat(256)), Err(PathFault::TooLong));
        assert_eq!(check_path(&["x"; 16].join("/")), Ok(()));
        assert_eq!(check_path(&["x"; 17].join("/")), Err(PathFault::TooLong));
    }

    #[test]
    fn f_037_a_name_is_a_folder_name() {
        for name in ["a", "deploy-checklist", "Deploy_2.0", &"x".repeat(64)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".a",
            "a.",
            "-a",
            "a-",
            "a b",
            "a/b",
            "a\\b",
            "C:",
            "ä",
            "a\0",
            &"x".repeat(65),
        ] {
            assert_eq!(check_name(name), Err(SkillFault::Name), "{name}");
        }
    }

    #[test]
    fn f_037_two_files_never_share_a_place() {
        for (one, two) in [
            ("a.md", "a.md"),
            ("a.md", "A.MD"),
            ("ä/b", "Ä/B"),
            ("a", "a/b"),
            ("a/b", "A"),
            ("a/b", "A/B/c"),
            ("straße", "STRASSE"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("\u{c9}/b", "e\u{301}/B"),
            ("straße", "STRAẞE"),
        ] {
            let fault = check("s", "", &[(one, ""), (two, "")]).unwrap_err();
            assert_eq!(fault, SkillFault::Twice { index: 1 }, "{one} {two}");
        }
        assert_eq!(check("s", "", &[("a/b", ""), ("a/c", ""), ("ab", ""), ("A/d", "")]), Ok(()));
    }

    #[test]
    fn f_037_a_letter_its_capital_and_its_small_letter_are_one() {
        for letter in (char::MIN..=char::MAX).filter(|c| !c.is_ascii()) {
            let [small, capital] =
                [letter.to_lowercase().collect(), letter.to_uppercase().collect()];
            for other in [&small, &capital] as [&String; 2] {
                assert_eq!(fold(other), fold(&letter.to_string()), "{letter} {other}");
            }
        }
    }

    #[test]
    fn f_037_a_skill_has_bounds() {
        let names: Vec<String> = (0..=SKILL_FILES_MAX).map(|n| format!("f{n}")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(check("s", "", &files[1..]), Ok(()));
        assert_eq!(check("s", "", &files), Err(SkillFault::Files));

        let most = "x".repeat(SKILL_FILE_BYTES_MAX);
        let more = "x".repeat(SKILL_FILE_BYTES_MAX + 1);
        assert_eq!(check("s", &most, &[("a", &most)]), Ok(()));
        assert_eq!(check("s", &more, &[]), Err(SkillFault::Content));
        assert_eq!(
            check("s", "", &[("a", ""), ("b", &more)]),
            Err(SkillFault::FileContent { index: 1 })
        );
        assert_eq!(check("s", "", &[("a", "\0")]), Err(SkillFault::FileContent { index: 0 }));

        let last = "x".repeat(SKILL_BYTES_MAX - 3 * (SKILL_FILE_BYTES_MAX + 1) - 1);
        let mut files = vec![("a", most.as_str()), ("b", &most), ("c", &most), ("d", &last)];
        assert_eq!(check("s", "", &files), Ok(()));
        assert_eq!(check("s", "1", &files), Err(SkillFault::Total));
        files.push(("e", ""));
        assert_eq!(check("s", "", &files), Err(SkillFault::Total));
    }

    #[test]
    fn a_refusal_names_its_field_and_never_the_text() {
        let fault = check("s", "", &[("ok", ""), ("/secret", "")]).unwrap_err();
        assert_eq!(fault.field(), "files.1.path");
        assert!(!format!("{fault} {fault:?}").contains("secret"));
        assert_eq!(check("/", "", &[]).unwrap_err().field(), "name");
    }
}
