//! The commands in README.md and docs/SERVICE.md, run as they are printed, in one shell, on a machine with nothing of ours.
//!
//! `cargo` is a stand-in that knows the two ways in which README.md calls it, and gives the binary under test; `tests/run` is what runs this test.

use etherraid_tests::require;
use etherraid_tests::world::{World, blocks, shell_blocks};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
/// Printed before each block.
const MARK: &str = "== block";

/// Stands for cargo.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
"build --release") mkdir -p target/release && ln -s /mnt/bin/etherraid target/release/etherraid ;;
"run --release -- "*) shift 3 && exec etherraid "$@" ;;
*) echo "README.md calls cargo otherwise: $*" >&2 && exit 1 ;;
esac
"#;

/// Words of a block, and what it prints.
const PRINTS: [(&str, &[&str]); 9] = [
    ("cargo build", &[]),
    ("ip netns add", &[]),
    ("vblade", &["      e9.0         0.268GB       san0 ", "      e9.4         0.268GB       san0 "]),
    ("etherraid create", &["md0: created", "ready: md0", "     Raid Level : raid5", "active sync volatile   e9.4"]),
    ("nbdinfo", &["export-size: 1069547520", "wrote 8388608/8388608 bytes", "read 8388608/8388608 bytes"]),
    ("etherraid examine", &["md0: stopped", "          Magic : a92b4efc", "   Array State : AAAAA"]),
    (
        "etherraid shelf",
        &["ready: md0", " at nbd://127.0.0.1:10809", "md0 : active raid5", "read 8388608/8388608 bytes"],
    ),
    ("ip netns del", &["md0: stopped"]),
    ("demo", &["every byte read was right"]),
];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A world with a `cargo`.
fn world() -> World {
    let world = World::new();
    world.ok(&format!("cat > /mnt/bin/cargo <<'END'\n{CARGO}END\nchmod +x /mnt/bin/cargo"));
    world
}

/// What a block must print.
fn prints(block: &str) -> &'static [&'static str] {
    let known = PRINTS.iter().find(|(words, _)| block.contains(words));
    known.unwrap_or_else(|| panic!("what does this block print?\n{block}")).1
}

#[test]
fn each_block_runs_as_printed() {
    require!(netns, "nsenter", "vblade", "qemu-io", "nbdinfo");
    let (trying, example): (Vec<_>, Vec<_>) =
        shell_blocks(&page("README.md")).into_iter().partition(|text| text.contains("tests/run"));
    assert!(trying.len() == 1 && example.len() == PRINTS.len() - 1, "README.md has other blocks than it had");
    let world = world();
    let typed = trying[0].replace("\ntests/run ", "\ntrue ");
    assert_ne!(typed, trying[0]);
    let told = world.sh(&format!("set -e\n{typed}"), LIMIT).ok();
    prints(&typed).iter().for_each(|words| assert!(told.contains(words), "{words:?} is not in\n{told}"));

    let marked = |(n, block): (usize, &String)| format!("echo '{MARK} {n}'\n{block}");
    let script: String = example.iter().enumerate().map(marked).collect();
    let told = world.sh(&format!("set -e\n{script}"), LIMIT).ok();
    for (n, block) in example.iter().enumerate() {
        let (_, after) = told.split_once(&format!("{MARK} {n}\n")).expect("each block is begun");
        let printed = after.split_once(MARK).map_or(after, |(printed, _)| printed);
        for words in prints(block) {
            assert!(printed.contains(words), "{words:?} is not in what this prints:\n{block}\n{printed}");
        }
    }
    assert_eq!(
        world.ok("ip netns; ls /tmp /run/etherraid; ip -br link | grep -v ^lo || true"),
        "/run/etherraid:\n\n/tmp:\n"
    );
}

/// What docs/SERVICE.md has installed is what systemd would start, and the file that it shows runs an array. There is no systemd in a world: what
/// is for that is checked by eye, and the unit by `service::the_unit_is_valid`.
#[test]
fn the_service_is_installed_as_printed() {
    require!(netns, "nsenter");
    let page = page("docs/SERVICE.md");
    let [install] = &shell_blocks(&page)[..] else { panic!("one block for a shell") };
    let world = world();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dist = repository.join("dist").canonicalize().unwrap();
    world.ok(&format!("cp -r {} dist", dist.display()));
    world.sh(&format!("set -e\n{install}"), LIMIT).ok();
    world.ok("test -x /usr/bin/etherraid; test -s /usr/local/share/man/man1/etherraid-run.1; bash -n /etc/bash_completion.d/etherraid");
    assert!(world.ok("cat /etc/systemd/system/etherraid@.service").contains("ExecStart=/usr/bin/etherraid run %i\n"));
    assert_eq!(world.ok("stat -c %a /etc/etherraid/md0.toml").trim(), "600");

    world.connect("disks", &world, "san0");
    world.start_shelf(&["disks"], 5);
    world.ok("etherraid create md0 -l 5 -n 5 --assume-clean -i san0 e9.0 e9.1 e9.2 e9.3 e9.4");
    // The example that was installed, and the file of the page.
    let served = world.serve("/usr/bin/etherraid run md0", "ready: md0 raid5");
    world.ok("etherraid stop md0");
    served.ends().ok();
    let file = blocks(&page).into_iter().find(|(kind, _)| kind == "toml").expect("a file is shown").1;
    world.ok(&format!("cat > /etc/etherraid/md0.toml <<'END'\n{file}END"));
    for command in ["etherraid run md0", "etherraid run md0 --takeover"] {
        assert!(command.ends_with("md0") || page.contains(&format!("\n{command}\n")), "the page has {command}");
        let served = world.serve(command, "at nbd+unix:///?socket=/run/etherraid/md0.nbd");
        served.end().ok();
    }
    assert!(page.contains("`etherraid reserve -i san0 9.0 --release`"));
    assert_eq!(world.ok("etherraid reserve -i san0 9.0 --release"), "e9.0\tnone\n");
}

/// Links within the repository lead somewhere.
#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|e| e == "md")).chain([root.join("README.md")]);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for (_, rest) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let target = rest.split([')', '#']).next().expect("never empty");
            if !target.is_empty() && !target.contains("://") {
                let path = page.parent().unwrap().join(target);
                assert!(path.exists(), "{}: no {target}", page.display());
            }
        }
    }
}
