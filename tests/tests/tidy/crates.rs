//! Which of our crates may import which.

use crate::source::{Offence, Source, line_of, word_places};

/// Folder of a crate and what of ours its ordinary dependencies may be. The binary, tests and benches may import everything.
const MAY_IMPORT: [(&str, &[&str]); 6] = [
    ("aoe/proto", &[]),
    ("aoe/sim", &[]),
    ("aoe/net", &["aoe-proto"]),
    ("raid/core", &[]),
    ("raid/engine", &["raid-core", "aoe-net", "aoe-proto"]),
    ("raid/export", &["raid-engine", "aoe-net"]),
];
/// Crates that may also not depend on anything that acts.
const PURE: [&str; 3] = ["aoe/proto", "aoe/sim", "raid/core"];
const ACTING: [&str; 8] = ["rustix", "libc", "io-uring", "tokio", "core_affinity", "rand", "tracing", "anyhow"];
const OURS: [&str; 7] = ["aoe-proto", "aoe-sim", "aoe-net", "raid-core", "raid-engine", "raid-export", "etherraid"];

/// Ordinary dependencies of a manifest, each with its line.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for (n, line) in (1..).zip(manifest.lines()) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            if let Some(name) = section.strip_prefix("dependencies.") {
                found.push((n, name));
            }
        } else if (section == "dependencies" || section.ends_with(".dependencies"))
            && section != "workspace.dependencies"
            && !line.starts_with('#')
            && let Some(name) = line.split(['.', '=', ' ']).next().filter(|s| !s.is_empty())
        {
            found.push((n, name));
        }
    }
    found
}

pub(crate) fn imports(path: &str, manifest: &str) -> Vec<Offence> {
    let folder = path.trim_end_matches("/Cargo.toml");
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(of, _)| *of == folder) else {
        return vec![];
    };
    dependencies(manifest)
        .into_iter()
        .filter(|(_, name)| {
            let foreign = OURS.contains(name) && !allowed.contains(name);
            foreign || (PURE.contains(&folder) && ACTING.contains(name))
        })
        .map(|(line, name)| Offence { path: path.to_owned(), line, text: format!("{folder} may not import {name}") })
        .collect()
}

/// The engine names the network crate in `member/aoe.rs` only.
pub(crate) fn engine_network_use(source: &Source) -> Vec<Offence> {
    let elsewhere = source.path.starts_with("raid/engine/src/")
        && !source.path.starts_with("raid/engine/src/member/aoe")
        && !source.is_test();
    if !elsewhere {
        return vec![];
    }
    word_places(source.code_without_tests(), "aoe_net")
        .into_iter()
        .map(|at| source.offence(line_of(&source.code, at), "names aoe_net outside member/aoe"))
        .collect()
}

#[test]
fn forbidden_imports_offend() {
    let manifest = "[package]\nname = \"x\"\n\n[dependencies]\naoe-proto.workspace = true\nraid-engine = { path = \"..\" }\nrustix = \"1\"\n\n[dev-dependencies]\naoe-sim.workspace = true\n";
    let found = |folder: &str| -> Vec<usize> {
        imports(&format!("{folder}/Cargo.toml"), manifest).iter().map(|offence| offence.line).collect()
    };
    assert_eq!(found("aoe/net"), [6]);
    assert_eq!(found("aoe/sim"), [5, 6, 7]);
    assert_eq!(found("raid/export"), [5]);
    assert!(found("cli").is_empty());
    let table = "[dependencies.raid-core]\npath = \"..\"\n";
    assert_eq!(imports("aoe/net/Cargo.toml", table).len(), 1);
    let targets = "[target.'cfg(unix)'.dependencies]\nraid-core = \"1\"\n";
    assert_eq!(imports("aoe/net/Cargo.toml", targets).len(), 1);
}

#[test]
fn the_network_in_the_planner_offends() {
    let at = |path: &str| {
        let source = Source::new(path.to_owned(), "use aoe_net::Driver;\n".to_owned());
        engine_network_use(&source).len()
    };
    assert_eq!(at("raid/engine/src/plug.rs"), 1);
    assert_eq!(at("raid/engine/src/member/aoe.rs"), 0);
    assert_eq!(at("raid/engine/src/member/aoe/discover.rs"), 0);
    assert_eq!(at("cli/src/run.rs"), 0);
}
