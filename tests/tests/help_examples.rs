//! Every command has examples in its help, and each of them runs as it is printed, comment and all, in a world that has what it names.

use etherraid_tests::proc::Cmd;
use etherraid_tests::world::World;
use etherraid_tests::{binary, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What each example prints. One that is not here fails the test.
const PRINTS: [(&str, &str); 79] = [
    ("etherraid demo", "every byte read was right"),
    ("etherraid demo --in-process", "every byte read was right"),
    ("etherraid create r5 -l 5 -n 5 -c 64K -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4", "r5: created"),
    ("etherraid create r5 -l 5 -n 3 -x 1 /dev/sdb /dev/sdc /dev/sdd /dev/sde", "Spare Devices : 1"),
    ("etherraid create r5 -l 5 -n 3 --assume-clean disk0.img disk1.img disk2.img", "r5: created"),
    ("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd", "[UUUUU]"),
    ("etherraid run r5 -i eth1 --scan --nbd tcp:127.0.0.1:10809", "[UUUUU] clean at nbd://127.0.0.1:10809"),
    ("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 --nbd unix:/run/r5.nbd --run", "[UUUU_]"),
    ("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --takeover", "[UUUU"),
    ("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --reserve", "[UUUU"),
    ("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --sysfs /run/r5.sys", "[UUUU"),
    ("etherraid run r5", "ready: r5"),
    ("etherraid detail r5", "     Raid Level : raid5\n"),
    ("etherraid detail r5 --json", "\"array_state\": \"clean\""),
    ("etherraid add r5 e9.5", "r5: e9.5 added"),
    ("etherraid fail r5 e9.1", "r5: e9.1 set faulty"),
    ("etherraid remove r5 e9.1", "r5: e9.1 removed"),
    ("etherraid stop r5", "r5: stopped"),
    ("etherraid bench randwrite --members 'mem:64M*5' --bs 4k --group-thread-cnt 0,1", "4k"),
    ("etherraid bench randwrite --members 'mem:64M*5' --bs 4k,64k --runtime 1 --limit --plot bench.svg", "of limit"),
    ("etherraid bench read -i eth1 --device e9.0 --bs 64k --json", "\"mode\": \"read\""),
    ("etherraid bench read -i eth1 --device e9.0 --bs 4k,64k --runtime 1 --limit", "limit busy"),
    ("etherraid bench randwrite -i eth1 e9.0 e9.1 e9.2 --bs 4k", "4k"),
    ("etherraid simulate four_shelves.toml", "goodput "),
    ("etherraid simulate four_shelves.toml --set aoe_congestion=1 --set aoe_window=16", "from submission"),
    ("etherraid simulate four_shelves.toml --json --plot windows.svg", "\"jain_devices\": "),
    ("etherraid shelf -i eth1 -d 1.0=/dev/sdb -d 1.1=/dev/sdc", "ready: e1.1"),
    ("etherraid shelf -i eth1 -i eth2 -d 1.0=disk0.img,ro -d 1.1=disk1.img,offset=1M,length=32M", "ready: e1.1"),
    ("etherraid shelf -i eth1 -d 1.0=/dev/sdb --state /var/lib/etherraid -m 02:00:00:00:00:02", "ready: e1.0"),
    ("etherraid shelf -i eth1 -d 1.0=null:16G", "ready: e1.0 null:17179869184 16777216 KiB"),
    ("etherraid capture -i eth1 aoe.pcap", "ready: capturing AoE on eth1 to aoe.pcap"),
    ("etherraid capture -i eth1 -i eth2 -c 1000000 aoe.pcap", "ready: capturing AoE on eth1, eth2 to aoe.pcap"),
    ("etherraid examine /dev/sdb /dev/sdc", "/dev/sdc:\n          Magic : a92b4efc\n"),
    ("etherraid examine -i eth1 e9.0 e9.1 e9.2", "e9.2:\n          Magic : a92b4efc\n"),
    ("etherraid examine --json disk0.img", "\"array_uuid\": "),
    ("etherraid status", "r5 : active raid5 e9.4[4] e9.3[3] e9.2[2] e9.1[1] e9.0[0]\n"),
    ("etherraid status --json", "\"array\": \"r5\""),
    ("etherraid tune r5", "sync_speed_max"),
    ("etherraid tune r5 sync_speed_max", "200000\n"),
    ("etherraid tune r5 sync_speed_max=50000 rmw_level=0", "sync_speed_max=50000\nrmw_level=0\n"),
    ("etherraid tune r5 --json", "\"name\": \"rmw_level\",\n    \"value\": \"0\""),
    ("etherraid discover -i eth1", "      e9.5         0.067GB       eth1 "),
    ("etherraid discover -i eth1 -i eth2 -t 3 --json", "\"interface\": \"eth2\""),
    ("etherraid stat -i eth1", "array=r5"),
    ("etherraid stat -i eth1 9.0 9.1", "      e9.1         0.067GB       eth1 "),
    ("etherraid stat", "array=r5"),
    ("etherraid stat -w 0.5 --count 3", " TAINT PAYLOAD ARRAY\n      e9.0       eth1 "),
    ("etherraid sancheck", "e9.5            2      8704  eth1 eth2\n"),
    ("etherraid sancheck -i eth1 -i eth2 9.0", "e9.0            2      8704  eth1 eth2\n"),
    ("etherraid sancheck --json", "\"warnings\": []"),
    ("etherraid interfaces r5", "eth1\te9.0 e9.1 e9.2 e9.3 e9.4\n"),
    ("etherraid interfaces r5 eth1 eth2", "eth2\t"),
    ("etherraid interfaces r5 --json", "\"name\": \"eth2\""),
    ("etherraid revalidate r5 9.0", "r5: e9.0 is asked\n"),
    ("etherraid flush r5", "r5: paths not in use of all members forgotten\n"),
    ("etherraid flush r5 9.0", "r5: paths not in use of e9.0 forgotten\n"),
    ("etherraid flush r5 --all", "r5: all paths of all members forgotten\n"),
    ("etherraid ping -i eth1 9.0", "IDENTIFY: 3 sent, 3 answered, 0% lost"),
    ("etherraid ping -i eth1 -i eth2 -c 100 -t 0.2 9.0", " on eth2 ---"),
    ("etherraid identify -i eth1 9.0", "             Model : etherraid"),
    ("etherraid identify -i eth1", "e9.5:\n"),
    ("etherraid identify -i eth1 9.0 --hex", "e9.0:\n40 00 "),
    ("etherraid cfg -i eth1", "9.0\t"),
    ("etherraid cfg -i eth1 9.0", "\n"),
    ("etherraid cfg -i eth1 -c set -s host-a 9.0", "host-a\n"),
    ("etherraid cfg -i eth1 -c fset -s '' 9.0", "\n"),
    ("etherraid cfg -i eth1 -c prefix -s host-", "9.1\thost-b\n"),
    ("etherraid mask -i eth1", "e9.0\tany\n"),
    ("etherraid mask -i eth1 9.0 --add self,02:00:00:00:00:02", " 02:00:00:00:00:02\n"),
    ("etherraid mask -i eth1 9.0 --delete 02:00:00:00:00:02", "e9.0\t"),
    ("etherraid mask -i eth1 9.0 --clear", "e9.0\tany\n"),
    ("etherraid reserve -i eth1", "e9.0\tnone\n"),
    ("etherraid reserve -i eth1 9.0 --set self", "e9.0\t"),
    ("etherraid reserve -i eth1 9.0 --release", "e9.0\tnone\n"),
    ("etherraid reserve -i eth1 9.0 --set self --force", "e9.0\t"),
    ("etherraid man /usr/local/share/man/man1", ""),
    ("etherraid completions bash > /etc/bash_completion.d/etherraid", ""),
    ("etherraid completions zsh > /usr/local/share/zsh/site-functions/_etherraid", ""),
    ("etherraid completions fish > ~/.config/fish/completions/etherraid.fish", ""),
];

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = Cmd::new(binary::path()).arg("--help").ok(LIMIT);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let first = |line: &str| line.split_whitespace().next().expect("a name").to_owned();
    let commands: Vec<String> = lines.filter(|line| line.starts_with("  ")).map(first).collect();
    commands.into_iter().filter(|name| name != "help").collect()
}

/// The examples in a command's help, as they are printed but for what they are indented by.
fn examples(command: &str) -> Vec<String> {
    let help = Cmd::new(binary::path()).args([command, "--help"]).ok(LIMIT);
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1).take_while(|line| line.starts_with("  "));
    let examples: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    assert!(!examples.is_empty(), "{command} --help has no examples");
    examples
}

/// What is typed of an example: it ends where its comment begins.
fn typed(example: &str) -> &str {
    example.split_once(" # ").map_or(example, |(typed, _)| typed).trim_end()
}

/// What an example is to print.
fn prints(example: &str) -> &'static str {
    let known = PRINTS.iter().find(|(text, _)| *text == typed(example));
    known.unwrap_or_else(|| panic!("what does it print? {example}")).1
}

/// A world with what the examples of a command name.
fn world(command: &str) -> World {
    let world = World::with_shelf(6);
    world.ok("truncate -s 64M /dev/sdb /dev/sdc /dev/sdd /dev/sde disk0.img disk1.img disk2.img");
    let local = |members: &str| world.ok(&format!("etherraid create r5 -l 5 -n 3 --assume-clean {members}"));
    match command {
        "run" => {
            world.make_array(5, None);
            let file = "interfaces = [\"eth1\"]\nscan = true\nrun = true\nnbd = [\"unix:/run/r5.nbd\"]";
            world.ok(&format!("echo '{file}' > /etc/etherraid/r5.toml"));
        }
        "detail" | "add" | "fail" | "stop" | "status" | "tune" | "stat" | "interfaces" | "revalidate" | "flush" => {
            world.make_array(5, Some("--nbd unix:/run/r5.nbd"));
        }
        "remove" => {
            world.make_array(5, Some("--nbd unix:/run/r5.nbd"));
            world.ok("etherraid fail r5 e9.1");
        }
        "examine" => {
            world.make_array(3, None);
            local("disk0.img disk1.img disk2.img");
            local("/dev/sdb /dev/sdc /dev/sdd");
        }
        "simulate" => {
            let scenario = include_str!("../../benches/scenarios/four_shelves.toml");
            world.ok(&format!("cat > four_shelves.toml <<'END'\n{scenario}END"));
        }
        "cfg" => drop(world.ok("etherraid cfg -i eth1 -c set -s host-b 9.1")),
        "completions" => {
            world.ok("mkdir -p /etc/bash_completion.d /usr/local/share/zsh/site-functions ~/.config/fish/completions");
        }
        _ => {}
    }
    world
}

fn run(world: &World, example: &str) {
    let needle = prints(example);
    let serves =
        ["etherraid run ", "etherraid shelf ", "etherraid capture "].iter().any(|start| example.starts_with(start));
    let printed = match serves {
        true => {
            let served = world.serve(example, "ready: ");
            let detail = served.line(needle, LIMIT);
            let done = served.end();
            assert!(done.status.success(), "{example}: {done:?}");
            detail
        }
        false => world.sh(example, LIMIT).ok(),
    };
    assert!(printed.contains(needle), "{example} prints no {needle:?}:\n{printed}");
}

#[test]
fn each_runs_as_printed() {
    require!(netns, "nsenter");
    let mut seen = Vec::new();
    for command in commands() {
        let world = world(&command);
        for example in examples(&command) {
            run(&world, &example);
            seen.push(typed(&example).to_owned());
        }
    }
    for (text, _) in PRINTS {
        assert!(seen.iter().any(|example| example == text), "no help has it any more: {text}");
    }
}

#[test]
fn files_that_examples_write_are_good() {
    require!(netns, "nsenter");
    let world = world("completions");
    for example in examples("completions").iter().chain(&examples("man")) {
        world.ok(example);
    }
    world.ok("bash -n /etc/bash_completion.d/etherraid");
    assert!(world.ok("cat /usr/local/share/zsh/site-functions/_etherraid").starts_with("#compdef etherraid"));
    assert!(world.ok("cat ~/.config/fish/completions/etherraid.fish").contains("complete -c etherraid"));
    let pages = world.ok("ls /usr/local/share/man/man1");
    for command in commands() {
        assert!(pages.contains(&format!("etherraid-{command}.1\n")), "{pages}");
    }
}
