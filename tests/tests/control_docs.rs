//! The commands in docs/CONTROL.md, run as they are printed against a running array, and the replies printed there: what comes has the same
//! fields of the same kinds.

use etherraid_tests::require;
use etherraid_tests::world::{World, blocks};
use serde_json::Value;
use std::path::Path;

/// Where a value is of another shape than in the page. Null stands for anything: it is what is unset at the time. What a list has is like the first
/// in the page's list.
fn differs(at: &str, page: &Value, came: &Value) -> Option<String> {
    match (page, came) {
        (Value::Null, _) | (_, Value::Null) => None,
        (Value::Object(page), Value::Object(came)) => {
            let (mut left, mut right): (Vec<_>, Vec<_>) = (page.keys().collect(), came.keys().collect());
            left.sort();
            right.sort();
            if left != right {
                return Some(format!("{at}: the page has {left:?}, there came {right:?}"));
            }
            page.iter().find_map(|(key, value)| differs(&format!("{at}.{key}"), value, &came[key]))
        }
        (Value::Array(page), Value::Array(came)) => {
            let like = page.first().expect("lists in the page have an element");
            came.iter().enumerate().find_map(|(n, value)| differs(&format!("{at}[{n}]"), like, value))
        }
        (page, came) => {
            let same = std::mem::discriminant(page) == std::mem::discriminant(came);
            (!same).then(|| format!("{at}: the page has {page}, there came {came}"))
        }
    }
}

#[test]
fn replies_are_as_printed() {
    require!(netns, "nsenter", "curl");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONTROL.md");
    let page = blocks(&std::fs::read_to_string(path).expect("the page is there"));
    let world = World::with_shelf(4);
    world.make_array(3, Some("--nbd unix:/run/r5.nbd"));
    let mut seen = 0;
    for pair in page.windows(2) {
        let [(kind, typed), (reply_kind, printed)] = pair else { panic!("two") };
        if kind != "sh" {
            continue;
        }
        assert_eq!(reply_kind, "json", "a reply follows {typed}");
        let printed: Value = serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
        // Each line is a command whose reply is like the one below.
        for typed in typed.lines() {
            let told = world.ok(typed);
            let came: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{typed}: {error}: {told}"));
            assert_eq!(differs("", &printed, &came), None, "{typed}: {came}");
            assert_eq!(printed.get("error"), came.get("error"), "{typed}");
            assert!(!printed.is_null() || came.is_null(), "{typed}: {came}");
            seen += 1;
        }
    }
    assert_eq!(seen, 16, "the page has another number of replies than it had");
    assert_eq!(world.ok("ls /run/etherraid"), "");
}

#[test]
fn statuses_are_as_printed() {
    require!(netns, "nsenter", "curl");
    let world = World::with_shelf(3);
    world.make_array(3, Some("--nbd unix:/run/r5.nbd"));
    let ask = |more: &str| {
        let curl = "curl -s -w ' %{http_code}' --unix-socket /run/etherraid/r5.sock";
        let told = world.ok(&format!("{curl} {more}"));
        let (body, status) = told.rsplit_once(' ').expect("curl prints the status last");
        let failure: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{more}: {error}: {body}"));
        assert!(failure["error"].is_string(), "{more}: {body}");
        status.trim().to_owned()
    };
    for (status, more) in [
        ("400", "--json 'x' http://localhost/fail"),
        ("404", "http://localhost/nothing"),
        ("404", r#"--json '{"member": "e9.7"}' http://localhost/add"#),
        ("404", r#"--json '{"member": "e9.7"}' http://localhost/fail"#),
        ("405", "http://localhost/fail"),
        ("405", "-X POST http://localhost/detail"),
        ("409", r#"--json '{"member": "e9.1"}' http://localhost/remove"#),
        ("413", "--json @/mnt/large http://localhost/tune"),
        ("415", r#"-d '{"member": "e9.1"}' http://localhost/fail"#),
        ("422", r#"--json '{"mumber": "e9.1"}' http://localhost/fail"#),
        ("422", r#"--json '{"set": ["rmw_level=3"]}' http://localhost/tune"#),
    ] {
        world.ok(r#"test -e /mnt/large || (printf '{"set": ["'; head -c 3000000 /dev/zero | tr '\\0' x; printf '"]}') > /mnt/large"#);
        assert_eq!(ask(more), status, "{more}");
    }
    // Its members are looked for meanwhile.
    world.ok("etherraid run r6 -i eth1 e8.0 e8.1 --nbd unix:/run/r6.nbd > /dev/null 2>&1 &");
    world.ok("until test -S /run/etherraid/r6.sock; do sleep 0.02; done");
    let starting = "curl -s -w '%{http_code}' --unix-socket /run/etherraid/r6.sock http://localhost/detail";
    let told = world.ok(starting);
    assert!(told.contains("503") && told.contains("still being started"), "{told}");
    assert!(world.ok("etherraid detail r5").contains("State : clean"), "refused requests change nothing");
}
