//! One source file, as written and with comments and literals blanked out.

use std::fmt;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offence {
    /// File, relative to the workspace.
    pub(crate) path: String,
    /// Line, from 1; 0 for the whole file.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) text: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// A source file. `code` has as many lines as `text`.
pub(crate) struct Source {
    /// Path relative to the workspace.
    pub(crate) path: String,
    /// As written.
    pub(crate) text: String,
    /// With the insides of comments, strings and characters turned to blanks.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: String, text: String) -> Self {
        let code = blank(&text);
        Self { path, text, code }
    }

    pub(crate) fn offence(&self, line: usize, text: impl Into<String>) -> Offence {
        Offence { path: self.path.clone(), line, text: text.into() }
    }

    /// Whether the file holds nothing but tests.
    pub(crate) fn is_test(&self) -> bool {
        let in_tests = self.path.split('/').any(|part| part == "tests");
        in_tests || self.path.ends_with("tests.rs") || self.path.contains("/benches/")
    }

    /// The code up to the inline test module, if there is one.
    pub(crate) fn code_without_tests(&self) -> &str {
        let end = self.code.find("#[cfg(test)]\nmod ");
        &self.code[..end.unwrap_or(self.code.len())]
    }
}

/// Whether `c` may be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Byte offsets where `word` stands as a whole word.
pub(crate) fn word_places(code: &str, word: &str) -> Vec<usize> {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|&at| {
            let before = code[..at].chars().next_back();
            let after = code[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
        .collect()
}

/// Line number, from 1, of a byte offset.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// What the scanner is inside of.
enum Inside {
    Code,
    LineComment,
    BlockComment(usize),
    /// A string that ends with a quote and this many `#`; escapes count unless it is raw.
    Text {
        hashes: usize,
        raw: bool,
    },
}

/// Turns the insides of comments and literals to blanks, line ends excepted.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut inside = Inside::Code;
    let mut i = 0;
    while i < chars.len() {
        let (next, step) = match inside {
            Inside::Code => enter(&chars, i),
            Inside::LineComment if chars[i] == '\n' => (Inside::Code, 1),
            Inside::LineComment => (Inside::LineComment, 1),
            Inside::BlockComment(depth) => block_comment(&chars, i, depth),
            Inside::Text { hashes, raw } => string(&chars, i, hashes, raw),
        };
        let stays_code = matches!((&inside, &next), (Inside::Code, Inside::Code)) && step == 1;
        for &c in &chars[i..chars.len().min(i + step)] {
            out.push(if c == '\n' || stays_code { c } else { ' ' });
        }
        inside = next;
        i += step;
    }
    out
}

/// In code at `i`: what begins here, and how many characters that takes.
fn enter(chars: &[char], i: usize) -> (Inside, usize) {
    let at = |n: usize| chars.get(i + n).copied();
    let after_word = i > 0 && is_word(chars[i - 1]);
    match (chars[i], at(1)) {
        ('/', Some('/')) => (Inside::LineComment, 2),
        ('/', Some('*')) => (Inside::BlockComment(1), 2),
        ('"', _) => (Inside::Text { hashes: 0, raw: false }, 1),
        ('r', Some('"' | '#')) if !after_word || chars[i - 1] == 'b' => {
            let hashes = chars[i + 1..].iter().take_while(|&&c| c == '#').count();
            match at(1 + hashes) {
                Some('"') => (Inside::Text { hashes, raw: true }, 2 + hashes),
                // A raw name, such as r#type.
                _ => (Inside::Code, 1),
            }
        }
        // A character, not a lifetime: it closes after one character or an escape.
        ('\'', Some('\\')) => {
            let body = chars[i + 3..].iter().take_while(|&&c| c != '\'').count();
            (Inside::Code, body + 4)
        }
        ('\'', Some(_)) if at(2) == Some('\'') => (Inside::Code, 3),
        _ => (Inside::Code, 1),
    }
}

fn block_comment(chars: &[char], i: usize, depth: usize) -> (Inside, usize) {
    match (chars[i], chars.get(i + 1)) {
        ('*', Some('/')) if depth == 1 => (Inside::Code, 2),
        ('*', Some('/')) => (Inside::BlockComment(depth - 1), 2),
        ('/', Some('*')) => (Inside::BlockComment(depth + 1), 2),
        _ => (Inside::BlockComment(depth), 1),
    }
}

fn string(chars: &[char], i: usize, hashes: usize, raw: bool) -> (Inside, usize) {
    if chars[i] == '\\' && !raw {
        return (Inside::Text { hashes, raw }, 2);
    }
    let closing = chars[i + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    match chars[i] == '"' && closing {
        true => (Inside::Code, 1 + hashes),
        false => (Inside::Text { hashes, raw }, 1),
    }
}

#[test]
fn comments_and_literals_are_blanked() {
    let blanked = |text: &str| {
        let code = blank(text);
        assert_eq!(code.chars().count(), text.chars().count(), "{text}");
        code.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(blanked("a // unsafe\nb"), "a b");
    assert_eq!(blanked("a /* x /* unsafe */ { */ b"), "a b");
    assert_eq!(blanked(r#"f("unsafe \" {", x)"#), "f( , x)");
    assert_eq!(blanked(r###"f(r#"a " {"#, x)"###), "f( , x)");
    assert_eq!(blanked(r##"f(br"{\", x)"##), "f(b , x)");
    assert_eq!(blanked(r"f('{', '\'', '\u{7d}', 'a)"), "f( , , , 'a)");
    assert_eq!(blanked("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
    assert_eq!(blanked("r#type + bar"), "r#type + bar");
}

#[test]
fn words_are_whole() {
    assert_eq!(word_places("unsafe_op unsafe not_unsafe", "unsafe"), [10]);
    assert_eq!(line_of("a\nb\nc", 4), 3);
}
