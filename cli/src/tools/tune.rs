//! `tune`: reads and sets tunables of a running array. And the table of tunables, for help, man pages and docs/TUNABLES.md.

use std::fmt::Write as _;
use std::process::ExitCode;

use raid_engine::tunables::{Settings, table};

use super::exit;
use crate::control::client::ControlArgs;
use crate::control::messages::{self, Tunable, Tune};
use crate::output::{print, print_json};

const EXAMPLES: &str = "Examples:
  etherraid tune r5                                         # the whole table
  etherraid tune r5 sync_speed_max                          # one value
  etherraid tune r5 sync_speed_max=50000 rmw_level=0        # set two, both or none
  etherraid tune r5 --json
";

/// Read and set tunables of a running array
#[derive(Debug, clap::Args)]
#[command(
    after_help = format!("{EXAMPLES}\n--help has the table: names, units, ranges and meanings."),
    after_long_help = after_long_help()
)]
pub(crate) struct Args {
    #[command(flatten)]
    array: ControlArgs,

    /// Tunables to show or to set [default: show all]
    #[arg(value_name = "KEY[=VALUE]", value_parser = parse_item)]
    items: Vec<Item>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `KEY` or `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    key: String,
    /// Set when a value is given: the whole pair.
    pair: Option<String>,
}

/// One that names a tunable and, if it sets it, a value in its range.
fn parse_item(text: &str) -> Result<Item, String> {
    let mut settings = Settings::default();
    let Some((key, _)) = text.split_once('=') else {
        settings.get(text).map_err(|error| error.to_string())?;
        return Ok(Item { key: text.to_owned(), pair: None });
    };
    settings.set_pair(text).map_err(|error| error.to_string())?;
    Ok(Item { key: key.trim().to_owned(), pair: Some(text.to_owned()) })
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let set: Vec<String> = args.items.iter().filter_map(|item| item.pair.clone()).collect();
    let rows: Vec<Tunable> = match set.is_empty() {
        true => args.array.get("/tunables")?,
        false => args.array.post("/tune", &Tune { set })?,
    };
    let named = |item: &Item| rows.iter().find(|row| row.name == item.key);
    let wanted: Vec<&Tunable> = match args.items.is_empty() {
        true => rows.iter().collect(),
        false => args.items.iter().filter_map(named).collect(),
    };
    if args.json {
        print_json(&wanted)?;
        return Ok(exit(true));
    }
    let text = match &args.items[..] {
        [] => text_table(&wanted),
        // A lone value can be used as it is.
        [Item { pair: None, .. }] => wanted
            .iter()
            .map(|row| {
                format!(
                    "{}
",
                    row.value
                )
            })
            .collect(),
        _ => wanted
            .iter()
            .map(|row| {
                format!(
                    "{}={}
",
                    row.name, row.value
                )
            })
            .collect(),
    };
    print(&text)?;
    Ok(exit(true))
}

fn text_table(rows: &[&Tunable]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["NAME", "VALUE", "DEFAULT", "UNIT", "RANGE", "TAKES EFFECT"]);
    for row in rows {
        let (range, when) = (short_range(&row.range), when(row.at_once));
        table.add_row([&row.name, &row.value, &row.default, &row.unit, range, when]);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned() + "\n").collect();
    lines.concat()
}

/// The numbers of a range in words.
fn short_range(range: &str) -> &str {
    let range = range.split(" (").next().unwrap_or(range);
    let range = range.split(',').next().unwrap_or(range);
    range.trim_start_matches("a whole number from ").trim_start_matches("seconds from ")
}

fn when(at_once: bool) -> &'static str {
    if at_once { "at once" } else { "when drained" }
}

/// The table for a terminal, as part of the help.
fn after_long_help() -> String {
    let mut text = format!("{EXAMPLES}\nTunables:\n");
    for row in messages::tunables(&Settings::default()) {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {}={} ({}; {}; {})\n      {}",
            row.name,
            row.default,
            row.unit,
            short_range(&row.range),
            when(row.at_once),
            row.doc
        );
    }
    text
}

/// docs/TUNABLES.md.
pub(super) fn markdown() -> String {
    let mut text = String::from(
        "# Tunables

What can be set of an array: with `--set KEY=VALUE` when it is started, and while it runs with `etherraid tune NAME KEY=VALUE`. A value that is not in its
range is refused, and changes nothing. What takes effect \"when drained\" does so once work under way in the workers that it concerns has ended; others go on
meanwhile. It is refused while a member is silent, or the array suspended. This page is made by `etherraid tunables`.

| name | default | unit | range | takes effect | meaning |
|---|---|---|---|---|---|
",
    );
    for (row, tunable) in messages::tunables(&Settings::default()).iter().zip(table()) {
        let (name, default, unit, doc) = (&row.name, &row.default, tunable.unit, tunable.doc);
        let _ = writeln!(
            text,
            "| `{name}` | {default} | {unit} | {} | {} | {doc} |",
            short_range(&row.range),
            when(row.at_once)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items() {
        assert_eq!(parse_item("rmw_level"), Ok(Item { key: "rmw_level".into(), pair: None }));
        let set = parse_item("rmw_level=2").expect("valid");
        assert_eq!((set.key.as_str(), set.pair.as_deref()), ("rmw_level", Some("rmw_level=2")));
        assert!(parse_item("rmv_level").expect_err("unknown").contains("rmw_level"));
        assert!(parse_item("rmw_level=3").expect_err("out of range").contains("0 to 2"));
        assert!(parse_item("=3").is_err() && parse_item("").is_err());
    }

    #[test]
    fn ranges_are_shortened() {
        let row = |name| table().find(|row| row.name == name).expect("a row").range_text();
        assert_eq!(short_range(&row("rmw_level")), "0 to 2");
        assert_eq!(short_range(&row("member_hold")), "0 to 86400");
        for row in table() {
            let text = row.range_text();
            let short = short_range(&text);
            let number = short.bytes().next().is_some_and(|b| b.is_ascii_digit()) && short.contains(" to ");
            assert!(number || short == "cpu or node", "{short}");
        }
    }

    #[test]
    fn the_table_has_all_rows() {
        let rows = messages::tunables(&Settings::default());
        let text = text_table(&rows.iter().collect::<Vec<_>>());
        assert_eq!(text.lines().count(), rows.len() + 1);
        assert!(text.starts_with("NAME"), "{text}");
        assert!(after_long_help().contains("aoe_maxout=64 (frames; 1 to 1024; at once)"));
    }

    #[test]
    fn the_page_in_docs_is_up_to_date() {
        let page = include_str!("../../../docs/TUNABLES.md");
        assert_eq!(page, markdown(), "make it anew: etherraid tunables > docs/TUNABLES.md");
    }
}
