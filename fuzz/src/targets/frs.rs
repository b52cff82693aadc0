//! FRS bodies, compared with an independent XML reader: an accepted body has the same items there.

use super::Target;
use super::xml_files::{self, WORK};
use crate::input::Input;
use crate::memory::Meter;
use roxmltree::{Document, Node};
use tidegate_servers::fuzzing::{self, Item};

pub(super) const TARGET: Target = Target { name: "frs", run, seeds };

fn run(input: &[u8]) {
    let mut input = Input(input);
    let command = usize::from(input.byte());
    let bytes = input.rest();
    let meter = Meter::begin();
    let read = WORK.check(bytes.len(), || fuzzing::frs_items(command, bytes));
    let allowed = (64 << 10) + 64 * bytes.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), bytes.len());
    match read {
        Err((at, message)) => {
            assert!(!message.is_empty() && message.len() < 2_000, "{message}");
            assert!(at <= bytes.len(), "at {at}: {message}");
        }
        Ok(items) => {
            xml_files::compare(bytes, 3);
            let text = std::str::from_utf8(bytes).expect("it is text");
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            let document = Document::parse(text).expect("it is XML");
            let found = document.root_element().children().filter(Node::is_element);
            assert_eq!(items, found.map(item).collect::<Vec<Item>>());
            assert!((1..=256).contains(&items.len()));
        }
    }
}

fn item(node: Node<'_, '_>) -> Item {
    let attribute = |name: &str| node.attribute(name).unwrap_or_default().to_owned();
    let hits = node.attribute("hits").map_or(1, |hits| hits.parse().expect("a number"));
    let windows = node.children().filter(Node::is_element);
    let windows = windows.map(|window| window.attribute("name").unwrap_or_default().to_owned());
    (attribute("business"), attribute("key"), hits, windows.collect())
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |command: u8, text: &str| [&[command][..], text.as_bytes()].concat();
    let create = "<frs><item business='b' key='k'><window name='day' count='5' \
                  start='1763766000.25' end='1763766001'/><window name='minute'/></item></frs>";
    vec![
        seed(0, "<frs><item business=\"login\" key=\"user-17\"/></frs>"),
        seed(
            1,
            "<?xml version='1.0' encoding='UTF-8'?>\n<frs><item business='login' key='user-17' hits='3'/>\n<!-- c --><item key='a&amp;b&#x20AC;' business='x'></item></frs>",
        ),
        seed(
            2,
            "<frs items='all-or-none'><item business='a' key='k' hits='2'/><item business='b' key='k'/></frs>",
        ),
        seed(4, create),
        seed(5, create),
        seed(7, "<frs><item business='' key='k'/></frs>"),
    ]
}
