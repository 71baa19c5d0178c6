//! The page: plain files, in the binary.

use hyper::StatusCode;

use crate::routes::{Answer, full};

/// Nothing from elsewhere, no script but our files, no frames, no forms; and no text becomes markup, whatever the script does.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, type and content of every file.
const FILES: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("../assets/index.html")),
    ("/style.css", CSS, include_str!("../assets/style.css")),
    ("/icon.svg", SVG, include_str!("../assets/icon.svg")),
    ("/page.js", SCRIPT, include_str!("../assets/page.js")),
    ("/dom.js", SCRIPT, include_str!("../assets/dom.js")),
    ("/timeline.js", SCRIPT, include_str!("../assets/timeline.js")),
    ("/details.js", SCRIPT, include_str!("../assets/details.js")),
];

/// The file at a path; `None` if there is none.
pub(crate) fn file(path: &str) -> Option<Answer> {
    let (_, kind, text) = FILES.iter().find(|(own, ..)| *own == path)?;
    Some(full(StatusCode::OK, kind, *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_nothing_elsewhere_and_makes_no_markup_of_text() {
        for (path, kind, text) in FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for banned in [
                "http:",
                "https:",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(banned), "{path} has {banned}");
            }
            if kind == HTML {
                for banned in ["<style", "style=", "onclick", "onload", "javascript:"] {
                    assert!(!text.contains(banned), "{path} has {banned}");
                }
                let scripts = text.matches("<script").count();
                assert_eq!(
                    scripts,
                    text.matches("<script type=\"module\" src=\"/").count(),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn every_file_that_is_named_is_there() {
        for (path, _, text) in FILES {
            for quoted in ["\"/", "\"./"] {
                for named in text.split(quoted).skip(1) {
                    let name = named.split('"').next().unwrap_or_default();
                    let kind = name.rsplit_once('.').map(|(_, kind)| kind);
                    let is_file = matches!(kind, Some("js" | "css" | "svg"));
                    assert!(
                        !is_file || file(&format!("/{name}")).is_some(),
                        "{path} names {name}"
                    );
                }
            }
        }
    }
}
