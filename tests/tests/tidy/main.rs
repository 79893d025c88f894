//! Reads our own sources and fails where they break a rule that no compiler checks.
//!
//! The rules: sizes of files and functions, where `unsafe` may be and that it is explained, which crates and files stay pure,
//! which crate may import which, how the program prints, words that do not belong in the repository, a `//!` at the top of each file, and no file that
//! no module names. Each checker is a function from text to [`Offence`]s, so that its own tests can hand it bad text.

mod crates;
mod rules;
mod source;

use source::{Offence, Source};
use std::path::{Path, PathBuf};

/// Folders that hold no source of ours.
const SKIPPED_FOLDERS: [&str; 3] = ["target", ".git", "fixtures"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace").to_owned()
}

/// All files below `dir` whose names `wanted` accepts, as paths relative to `root`, sorted.
fn files(root: &Path, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    folders.push(entry.path());
                }
            } else if wanted(&name) {
                let path = entry.path();
                let relative = path.strip_prefix(root).unwrap().display().to_string();
                found.push((relative, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let sources: Vec<Source> = files(&workspace(), |name| name.ends_with(".rs"))
        .into_iter()
        .map(|(path, text)| Source::new(path, text))
        .collect();
    assert!(sources.len() > 10, "the sources are not where they were");
    sources
}

fn none(offences: Vec<Offence>) {
    let list: Vec<String> = offences.iter().map(Offence::to_string).collect();
    assert!(list.is_empty(), "{} offences:\n{}", list.len(), list.join("\n"));
}

fn check(rule: impl Fn(&Source) -> Vec<Offence>) {
    none(sources().iter().flat_map(rule).collect());
}

#[test]
fn files_are_short() {
    check(rules::file_length);
}

#[test]
fn functions_are_short() {
    check(rules::function_length);
}

#[test]
fn unsafe_is_explained() {
    check(rules::unsafe_explained);
}

#[test]
fn unsafe_is_where_it_may_be() {
    check(rules::unsafe_place);
}

#[test]
fn pure_parts_are_pure() {
    check(rules::purity);
}

#[test]
fn every_file_says_what_it_is() {
    check(rules::opening_doc);
}

#[test]
fn the_program_stands_readers_that_go() {
    check(rules::printing);
}

#[test]
fn no_file_is_left_over() {
    let sources = sources();
    none(rules::unnamed_files(&sources));
}

#[test]
fn no_word_is_out_of_place() {
    let texts = files(&workspace(), |name| {
        [".rs", ".toml", ".md", ".sh", ".yml"].iter().any(|end| name.ends_with(end)) || name == "run"
    });
    none(texts.iter().flat_map(|(path, text)| rules::words(path, text)).collect());
}

#[test]
fn crates_import_only_what_they_may() {
    let manifests = files(&workspace(), |name| name == "Cargo.toml");
    none(manifests.iter().flat_map(|(path, text)| crates::imports(path, text)).collect());
}

#[test]
fn the_engine_sees_the_network_in_one_place() {
    check(crates::engine_network_use);
}
