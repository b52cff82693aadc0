//! The files of the console, as they are sent: whole, and compressed.
//!
//! They hold no data, so anybody may have them. Compressed once, when the first is asked for.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::sync::LazyLock;
use tidegate_core::fingerprint;

#[derive(Debug)]
pub struct Asset {
    /// The path in URLs.
    pub path: &'static str,
    pub content_type: &'static str,
    /// The entity tag, quoted. Other contents have another one.
    pub etag: String,
    pub plain: &'static [u8],
    pub gzip: Vec<u8>,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! files {
    ($($content_type:ident $file:literal)*) => {
        [$((concat!("/console/", $file), $content_type, include_bytes!(concat!("../assets/", $file)).as_slice())),*]
    };
}

/// The path that a reader opens is `/`, which is this file.
const INDEX: &str = "/console/index.html";

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let files = files! {
        HTML "index.html"
        CSS "style.css"
        SVG "icon.svg"
        JS "main.js"
        JS "ask.js"
        JS "charts.js"
        JS "dialogs.js"
        JS "dom.js"
        JS "text.js"
        JS "pages/overview.js"
        JS "pages/rules.js"
        JS "pages/key.js"
        JS "pages/top.js"
        JS "pages/statistics.js"
        JS "pages/limits.js"
        JS "uplot/uplot.js"
        CSS "uplot/uplot.css"
        TEXT "uplot/LICENSE"
    };
    files.into_iter().map(|(path, content_type, plain)| asset(path, content_type, plain)).collect()
});

fn asset(path: &'static str, content_type: &'static str, plain: &'static [u8]) -> Asset {
    let etag = format!("\"{:032x}\"", fingerprint(plain));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail. A file without a compressed form is sent whole.
    let gzip = encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default();
    Asset { path, content_type, etag, plain, gzip }
}

/// The file at a path of a URL.
#[must_use]
pub fn at(path: &str) -> Option<&'static Asset> {
    let path = if path == "/" { INDEX } else { path };
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    const BYTES_MAX: usize = 200 * 1024;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
        for asset in ASSETS.iter() {
            let mut plain = Vec::new();
            GzDecoder::new(&asset.gzip[..]).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, asset.plain, "{}", asset.path);
        }
    }

    #[test]
    fn a_path_leads_to_its_file() {
        assert_eq!(at("/").unwrap().path, INDEX);
        assert_eq!(at("/console/main.js").unwrap().content_type, JS);
        assert!(at("/console/").is_none() && at("/console/../main.js").is_none());
        let mut tags: Vec<&str> = ASSETS.iter().map(|asset| asset.etag.as_str()).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), ASSETS.len());
    }

    /// A page that reached for anything elsewhere would tell others of it, and would fail without a network.
    #[test]
    fn no_file_names_another_origin() {
        for asset in ASSETS.iter() {
            let text = std::str::from_utf8(asset.plain).unwrap();
            // The comment that says where uPlot is from, and the name of the vocabulary of SVG.
            let text = text.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "");
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for sign in ["http://", "https://", "ws://", "wss://", "src=\"//", "url(//", "@import"]
            {
                assert!(!text.contains(sign), "{} has {sign}", asset.path);
            }
        }
    }

    /// Text of clients never becomes markup or code, whatever a page does with it.
    #[test]
    fn no_own_file_makes_markup_or_code_of_text() {
        let own = ASSETS.iter().filter(|asset| !asset.path.contains("/uplot/"));
        for asset in own {
            let text = std::str::from_utf8(asset.plain).unwrap();
            for sign in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "srcdoc",
                "createContextualFragment",
                " style=",
                "onclick=",
            ] {
                assert!(!text.contains(sign), "{} has {sign}", asset.path);
            }
        }
    }
}
