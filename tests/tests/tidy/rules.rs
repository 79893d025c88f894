//! The rules for single files.

use crate::source::{Offence, Source, is_word, line_of, word_places};

/// Longest file, in lines.
const MAX_FILE_LINES: usize = 610;
/// Longest function, in lines from `fn` to its closing brace.
const MAX_FUNCTION_LINES: usize = 70;
/// How far above an `unsafe` its explanation may begin.
const SAFETY_REACH: usize = 8;

/// Where `unsafe` may be: parity kernels, socket and ring shells, buffer slab.
const UNSAFE_PLACES: [&str; 8] = [
    "raid/core/src/parity",
    "aoe/net/src/",
    "raid/engine/src/runtime",
    "raid/engine/src/member/",
    "raid/engine/src/slab",
    "raid/export/src/nbd/server",
    "cli/src/sys",
    "tests/src/proc.rs",
];

/// Parts that decide and never act.
const PURE_PLACES: [&str; 6] = [
    "aoe/proto/src/",
    "aoe/sim/src/",
    "raid/core/src/",
    "raid/engine/src/",
    "raid/export/src/nbd/proto",
    "raid/export/src/nbd/session",
];

/// Parts of those folders that may act after all.
const SHELLS: [&str; 2] = ["raid/engine/src/member/", "raid/engine/src/slab"];

/// The part that may also read clocks.
const RUNTIME: [&str; 2] = ["raid/engine/src/runtime/", "raid/engine/src/runtime.rs"];

/// What a pure part may not name.
const IMPURE: [&str; 13] = [
    "Instant",
    "SystemTime",
    "std::thread",
    "thread::spawn",
    "thread::sleep",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "rustix",
    "libc",
    "io_uring",
    "tokio",
];

/// Clocks, which of the engine `runtime/` alone reads: members and slab act, but are told the time.
const CLOCKS: [&str; 2] = ["Instant", "SystemTime"];

pub(crate) fn file_length(source: &Source) -> Vec<Offence> {
    let lines = source.text.lines().count();
    match lines > MAX_FILE_LINES {
        true => vec![source.offence(0, format!("{lines} lines; at most {MAX_FILE_LINES}"))],
        false => vec![],
    }
}

pub(crate) fn function_length(source: &Source) -> Vec<Offence> {
    let code = &source.code;
    let mut offences = Vec::new();
    for at in word_places(code, "fn") {
        let name: String = code[at + 2..].trim_start().chars().take_while(|&c| is_word(c)).collect();
        // Without a name it is a pointer type.
        let body = (!name.is_empty()).then(|| body_end(&code[at..])).flatten();
        let Some(end) = body else { continue };
        let lines = code[at..at + end].matches('\n').count() + 1;
        if lines > MAX_FUNCTION_LINES {
            offences.push(source.offence(
                line_of(code, at),
                format!("function {name} has {lines} lines; at most {MAX_FUNCTION_LINES}"),
            ));
        }
    }
    offences
}

/// Offset of the brace that closes the body of the function at the start of `code`; `None` for a declaration.
fn body_end(code: &str) -> Option<usize> {
    let (mut braces, mut brackets) = (0usize, 0usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.checked_sub(1)?,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

pub(crate) fn unsafe_explained(source: &Source) -> Vec<Offence> {
    let lines: Vec<&str> = source.text.lines().collect();
    let explained = |line: usize| {
        let above = &lines[line.saturating_sub(SAFETY_REACH + 1)..line];
        above.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety") || l.contains("Safety:"))
    };
    word_places(&source.code, "unsafe")
        .into_iter()
        .filter(|&at| !is_unsafe_type_or_attribute(&source.code[at..]))
        .map(|at| line_of(&source.code, at))
        .filter(|&line| !explained(line))
        .map(|line| source.offence(line, "unsafe without a SAFETY comment"))
        .collect()
}

/// `unsafe fn(..)` in a type and `unsafe(no_mangle)` need no reason of their own.
fn is_unsafe_type_or_attribute(code: &str) -> bool {
    let rest = code["unsafe".len()..].trim_start();
    let rest = rest.strip_prefix("extern").unwrap_or(rest).trim_start();
    rest.starts_with('(') || rest.strip_prefix("fn").is_some_and(|r| r.starts_with('('))
}

pub(crate) fn unsafe_place(source: &Source) -> Vec<Offence> {
    if UNSAFE_PLACES.iter().any(|place| source.path.starts_with(place)) {
        return vec![];
    }
    word_places(&source.code, "unsafe")
        .into_iter()
        .map(|at| source.offence(line_of(&source.code, at), "unsafe outside its places"))
        .collect()
}

pub(crate) fn purity(source: &Source) -> Vec<Offence> {
    let starts = |places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
    if !starts(&PURE_PLACES) || starts(&RUNTIME) || source.is_test() {
        return vec![];
    }
    let names: &[&str] = if starts(&SHELLS) { &CLOCKS } else { &IMPURE };
    let code = source.code_without_tests();
    let mut offences: Vec<Offence> = names
        .iter()
        .flat_map(|name| word_places(code, name).into_iter().map(move |at| (at, name)))
        .map(|(at, name)| source.offence(line_of(code, at), format!("a pure part names {name}")))
        .collect();
    offences.sort_by_key(|offence| offence.line);
    offences
}

/// Macros of std that panic when nobody reads what they print.
const PRINTING: [&str; 4] = ["print", "println", "eprint", "eprintln"];

/// The program prints through `output`, which stands readers that have gone.
pub(crate) fn printing(source: &Source) -> Vec<Offence> {
    if !source.path.starts_with("cli/src/") || source.is_test() {
        return vec![];
    }
    let code = source.code_without_tests();
    let is_macro = |at: usize, name: &str| code[at + name.len()..].starts_with('!');
    PRINTING
        .iter()
        .flat_map(|name| word_places(code, name).into_iter().filter(|&at| is_macro(at, name)).map(move |at| (at, name)))
        .map(|(at, name)| source.offence(line_of(code, at), format!("{name}! panics when its reader has gone")))
        .collect()
}

pub(crate) fn opening_doc(source: &Source) -> Vec<Offence> {
    match source.text.starts_with("//!") {
        true => vec![],
        false => vec![source.offence(1, "the file does not open with //!")],
    }
}

/// Files that no `mod` line names, so that they are not compiled.
pub(crate) fn unnamed_files(sources: &[Source]) -> Vec<Offence> {
    let named = |folder: &str, module: &str| {
        let parents = [
            format!("{folder}/lib.rs"),
            format!("{folder}/main.rs"),
            format!("{folder}/mod.rs"),
            format!("{folder}.rs"),
        ];
        sources.iter().filter(|source| parents.contains(&source.path)).any(|source| declares(&source.code, module))
    };
    sources
        .iter()
        .filter(|source| {
            let Some((folder, file)) = source.path.rsplit_once('/') else {
                return false;
            };
            let is_root = matches!(file, "lib.rs" | "main.rs" | "mod.rs" | "build.rs");
            let is_target = ["tests", "benches", "examples", "src/bin"]
                .iter()
                .any(|targets| folder.ends_with(&format!("/{targets}")));
            !is_root && !is_target && !named(folder, file.trim_end_matches(".rs"))
        })
        .map(|source| source.offence(0, "no module names this file"))
        .collect()
}

fn declares(code: &str, module: &str) -> bool {
    word_places(code, "mod").into_iter().any(|at| {
        let rest = code[at + 3..].trim_start();
        rest.strip_prefix(module).is_some_and(|rest| rest.trim_start().starts_with(';'))
    })
}

/// Words for unfinished work, and for the place where somebody happened to work. Each is written in two halves here, or this
/// file would offend.
const BANNED: [(&str, &str); 10] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("dbg", "!("),
    ("todo", "!("),
    ("unimplemented", "!("),
    ("/wo", "rk/"),
    ("/fa", "rm/"),
    ("/tmp/bash", "_jobs"),
    ("deb.debian", ".org"),
];

pub(crate) fn words(path: &str, text: &str) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (n, line) in (1..).zip(text.lines()) {
        for (a, b) in BANNED {
            let word = format!("{a}{b}");
            // Whole words only where the ban is on a word.
            let found = match word.chars().all(is_word) {
                true => !word_places(line, &word).is_empty(),
                false => line.contains(&word),
            };
            if found {
                offences.push(Offence { path: path.to_owned(), line: n, text: format!("names {word}") });
            }
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path.to_owned(), text.to_owned())
    }

    fn lines(offences: &[Offence]) -> Vec<usize> {
        offences.iter().map(|offence| offence.line).collect()
    }

    #[test]
    fn long_files_and_functions_offend() {
        assert!(file_length(&source("a.rs", &"x\n".repeat(600))).is_empty());
        assert_eq!(file_length(&source("a.rs", &"x\n".repeat(701))).len(), 1);

        let function = |body: usize| {
            format!("trait T {{ fn d(&self, x: [u8; 4]); }}\nfn long(x: [u8; 2]) {{\n{}}}\n", "// }\n".repeat(body))
        };
        assert!(function_length(&source("a.rs", &function(68))).is_empty());
        let offences = function_length(&source("a.rs", &function(69)));
        assert_eq!(lines(&offences), [2]);
        assert!(offences[0].text.contains("long has 71 lines"), "{}", offences[0]);
    }

    #[test]
    fn unexplained_unsafe_offends() {
        let bad = "fn f() {\n    unsafe { g() }\n}\n";
        let good = "fn f() {\n    // SAFETY: g has no conditions.\n    unsafe { g() }\n}\n";
        let documented = "/// # Safety\n/// Never.\nunsafe fn f() {}\ntype F = unsafe fn(u8);\n";
        assert_eq!(lines(&unsafe_explained(&source("a.rs", bad))), [2]);
        assert!(unsafe_explained(&source("a.rs", good)).is_empty());
        assert!(unsafe_explained(&source("a.rs", documented)).is_empty());
        let far = format!("// SAFETY: far.\n{}unsafe fn f() {{}}\n", "\n".repeat(9));
        assert_eq!(lines(&unsafe_explained(&source("a.rs", &far))), [11]);
    }

    #[test]
    fn misplaced_unsafe_offends() {
        let text = "// unsafe\nunsafe fn f() {}\n";
        assert!(unsafe_place(&source("raid/core/src/parity/avx2.rs", text)).is_empty());
        assert_eq!(lines(&unsafe_place(&source("raid/core/src/geometry.rs", text))), [2]);
    }

    #[test]
    fn impure_names_offend_in_pure_parts_only() {
        let text = "use core::time::Duration;\nuse std::time::Instant;\n#[cfg(test)]\nmod tests { use std::fs; }\n";
        for pure in ["aoe/proto/src/initiator.rs", "raid/engine/src/plug.rs", "raid/export/src/nbd/session.rs"] {
            assert_eq!(lines(&purity(&source(pure, text))), [2], "{pure}");
        }
        for shell in [
            "raid/engine/src/runtime/park.rs",
            "aoe/net/src/packet.rs",
            "aoe/proto/src/initiator/tests.rs",
            "raid/export/src/nbd/server.rs",
        ] {
            assert!(purity(&source(shell, text)).is_empty(), "{shell}");
        }
        let member = source("raid/engine/src/member/file.rs", "use std::fs::File;\nuse std::time::Instant;\n");
        assert_eq!(lines(&purity(&member)), [2], "members act, but read no clock");
    }

    #[test]
    fn printing_macros_offend_in_the_program() {
        let text = "fn f() {\n    print(x);\n    println!(\"x\");\n    eprint!();\n}\n#[cfg(test)]\nmod tests { fn g() { print!(); } }\n";
        assert_eq!(lines(&printing(&source("cli/src/a.rs", text))), [3, 4]);
        assert!(printing(&source("tests/src/a.rs", text)).is_empty());
    }

    #[test]
    fn files_without_purpose_or_parent_offend() {
        assert_eq!(lines(&opening_doc(&source("a.rs", "use x;\n"))), [1]);
        assert!(opening_doc(&source("a.rs", "//! Owns x.\n")).is_empty());

        let sources = [
            source("x/src/lib.rs", "mod a;\n// mod c;\n"),
            source("x/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            source("x/src/a/tests.rs", ""),
            source("x/src/c.rs", ""),
            source("x/tests/e2e.rs", ""),
        ];
        let offences = unnamed_files(&sources);
        assert_eq!(offences.len(), 1);
        assert_eq!(offences[0].path, "x/src/c.rs");
    }

    #[test]
    fn banned_words_offend() {
        for (a, b) in BANNED {
            let offences = words("a.md", &format!("fine\nx {a}{b} y\n"));
            assert!(lines(&offences).contains(&2), "{a}{b}");
        }
        assert!(words("a.md", &format!("METHO{}S, {}{}X\n", "DO", "XX", "X")).is_empty());
    }
}
