//! Expands macros by example in a source, since cbindgen sees only expanded text.
//!
//! It supports the part of the language that `src/common.rs` needs: macros of one rule; fragments
//! `ident`, `literal` and `meta`, and `ty` and `expr` that end at a comma, a semicolon, `=>` or
//! with their group; repetitions that are not inside others; `$crate`; and `concat!` and
//! `stringify!` in texts of documentation. Anything else is a panic, which names it.

use proc_macro2::{Delimiter, Group, Literal, TokenStream, TokenTree};
use std::collections::HashMap;

/// The macros of a source, by name: their patterns, and their expansions.
pub struct Macros(HashMap<String, (Vec<TokenTree>, Vec<TokenTree>)>);

/// The tokens of a fragment; in a repetition once for each time.
#[derive(Clone, Debug)]
enum Bound {
    Once(Vec<TokenTree>),
    Times(Vec<HashMap<String, Bound>>),
}

type Bounds = HashMap<String, Bound>;

fn tokens(source: &str) -> Vec<TokenTree> {
    source.parse::<TokenStream>().unwrap().into_iter().collect()
}

fn inside(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

fn is_punct(tree: Option<&TokenTree>, c: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

fn name(tree: Option<&TokenTree>) -> Option<String> {
    match tree {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn group(tree: Option<&TokenTree>) -> Option<&Group> {
    match tree {
        Some(TokenTree::Group(group)) => Some(group),
        _ => None,
    }
}

impl Macros {
    pub fn of(source: &str) -> Self {
        let all = tokens(source);
        let mut found = HashMap::new();
        for at in 0..all.len() {
            if name(all.get(at)).as_deref() == Some("macro_rules") && is_punct(all.get(at + 1), '!')
            {
                let (name, body) =
                    (name(all.get(at + 2)).unwrap(), group(all.get(at + 3)).unwrap());
                let rule = inside(body);
                assert!(rule.len() <= 5, "{name} has more than one rule");
                let matched = inside(group(rule.first()).unwrap());
                let becomes = inside(group(rule.get(3)).unwrap());
                found.insert(name, (matched, becomes));
            }
        }
        Self(found)
    }

    /// The source with every call of one of these macros expanded, and how many there were.
    pub fn expand(&self, source: &str) -> (String, usize) {
        let all = tokens(source);
        let (mut out, mut at, mut count) = (Vec::new(), 0, 0);
        while at < all.len() {
            let known = name(all.get(at)).and_then(|name| Some((self.0.get(&name)?, name)));
            match (known, group(all.get(at + 2))) {
                (Some(((matched, becomes), name)), Some(given))
                    if is_punct(all.get(at + 1), '!') =>
                {
                    let (given, mut bounds) = (inside(given), Bounds::new());
                    let end = match_all(matched, &given, &mut bounds);
                    assert_eq!(end, Some(given.len()), "{name}! does not match: {given:?}");
                    out.extend(transcribed(becomes, &bounds));
                    count += 1;
                    at += 3;
                    at += usize::from(is_punct(all.get(at), ';'));
                }
                _ => {
                    out.push(all[at].clone());
                    at += 1;
                }
            }
        }
        (out.into_iter().collect::<TokenStream>().to_string(), count)
    }
}

/// How many tokens of `given` match all of `pattern`.
fn match_all(pattern: &[TokenTree], given: &[TokenTree], bounds: &mut Bounds) -> Option<usize> {
    let (mut at, mut rest) = (0, pattern);
    while let Some(first) = rest.first() {
        if is_punct(Some(first), '$') {
            if let Some(repeated) = group(rest.get(1)) {
                let repeated = inside(repeated);
                let most = if is_punct(rest.get(2), '?') { 1 } else { usize::MAX };
                assert!(most == 1 || is_punct(rest.get(2), '*'), "a repetition of another kind");
                let mut times = Vec::new();
                while times.len() < most {
                    let mut inner = Bounds::new();
                    match match_all(&repeated, &given[at..], &mut inner) {
                        Some(taken) if taken > 0 => at += taken,
                        _ => break,
                    }
                    times.push(inner);
                }
                for fragment in fragments(&repeated) {
                    bounds.insert(fragment, Bound::Times(times.clone()));
                }
                rest = &rest[3..];
                continue;
            }
            let (fragment, kind) = (name(rest.get(1))?, name(rest.get(3))?);
            let length = match kind.as_str() {
                "ident" => usize::from(name(given.get(at)).is_some()),
                "literal" => usize::from(matches!(given.get(at), Some(TokenTree::Literal(_)))),
                "meta" => given.len() - at,
                "ty" | "expr" => {
                    let ends = |i: &usize| {
                        is_punct(given.get(*i), ',')
                            || is_punct(given.get(*i), ';')
                            || is_punct(given.get(*i), '=') && is_punct(given.get(*i + 1), '>')
                    };
                    (at..given.len()).find(ends).unwrap_or(given.len()) - at
                }
                kind => panic!("a fragment of kind {kind}"),
            };
            if length == 0 {
                return None;
            }
            bounds.insert(fragment, Bound::Once(given[at..at + length].to_vec()));
            at += length;
            rest = &rest[4..];
            continue;
        }
        let taken = given.get(at)?;
        match (first, taken) {
            (TokenTree::Group(wanted), TokenTree::Group(found)) => {
                let found = inside(found);
                if match_all(&inside(wanted), &found, bounds)? != found.len() {
                    return None;
                }
            }
            _ if first.to_string() == taken.to_string() => {}
            _ => return None,
        }
        at += 1;
        rest = &rest[1..];
    }
    Some(at)
}

/// The names of the fragments in a pattern.
fn fragments(pattern: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, tree) in pattern.iter().enumerate() {
        if let TokenTree::Group(group) = tree {
            found.extend(fragments(&inside(group)));
        } else if is_punct(Some(tree), '$') {
            found.extend(name(pattern.get(at + 1)));
        }
    }
    found
}

fn transcribed(becomes: &[TokenTree], bounds: &Bounds) -> Vec<TokenTree> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < becomes.len() {
        let tree = &becomes[at];
        if is_punct(Some(tree), '$') {
            if let Some(repeated) = group(becomes.get(at + 1)) {
                let repeated = inside(repeated);
                let counts =
                    fragments(&repeated).into_iter().find_map(|name| match bounds.get(&name) {
                        Some(Bound::Times(times)) => Some(times.clone()),
                        _ => None,
                    });
                for inner in counts.expect("a repetition of what is not repeated") {
                    let mut bounds = bounds.clone();
                    bounds.extend(inner);
                    out.extend(transcribed(&repeated, &bounds));
                }
                at += 3;
                continue;
            }
            let fragment = name(becomes.get(at + 1)).unwrap();
            match bounds.get(&fragment) {
                Some(Bound::Once(trees)) => out.extend(trees.iter().cloned()),
                None if fragment == "crate" => out.push(becomes[at + 1].clone()),
                other => panic!("${fragment} is {other:?}"),
            }
            at += 2;
            continue;
        }
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let inner = texts(transcribed(&inside(group), bounds));
                out.push(Group::new(Delimiter::Bracket, inner.into_iter().collect()).into());
            }
            TokenTree::Group(group) => {
                let inner = transcribed(&inside(group), bounds);
                out.push(Group::new(group.delimiter(), inner.into_iter().collect()).into());
            }
            _ => out.push(tree.clone()),
        }
        at += 1;
    }
    out
}

/// `concat!(..)` at the end of an attribute, as the text that it is.
fn texts(attribute: Vec<TokenTree>) -> Vec<TokenTree> {
    let [before @ .., TokenTree::Ident(called), _, TokenTree::Group(parts)] = &attribute[..] else {
        return attribute;
    };
    assert_eq!(called.to_string(), "concat", "in an attribute");
    let (parts, mut text) = (inside(parts), String::new());
    for (at, part) in parts.iter().enumerate() {
        match part {
            TokenTree::Literal(part) => {
                let part = part.to_string();
                let part = part.strip_prefix('"').and_then(|part| part.strip_suffix('"')).unwrap();
                text += &part.replace("\\\"", "\"");
            }
            // That of `stringify!`.
            TokenTree::Group(_) => text += &inside(group(parts.get(at)).unwrap())[0].to_string(),
            _ => {}
        }
    }
    let text = TokenTree::from(Literal::string(&text));
    before.iter().cloned().chain([text]).collect()
}

#[test]
fn a_macro_becomes_what_its_rule_says() {
    let macros = Macros::of(
        r#"macro_rules! made {
            ($(#[$more:meta])* $this:ident: $type:ty $(, $arg:ident: $of:ty => $with:expr)?; $f:ident) => {
                #[doc = concat!(" Frees a \"", stringify!($this), "\".")]
                $(#[$more])*
                pub fn $f($this: $type, $($arg: $of,)? last: u8) -> $crate::Out {
                    ($($with)?)
                }
            };
        }"#,
    );
    let calls = "made! { #[doc = \" More.\"] x: *mut X, a: u8 => f(a)?; one } made!(y: Y; two);";
    let (expanded, count) = macros.expand(calls);
    let wanted = "#[doc = \" Frees a \\\"x\\\".\"] #[doc = \" More.\"]
        pub fn one(x: *mut X, a: u8, last: u8) -> crate::Out { (f(a)?) }
        #[doc = \" Frees a \\\"y\\\".\"]
        pub fn two(y: Y, last: u8) -> crate::Out { () }";
    assert_eq!((expanded, count), (wanted.parse::<TokenStream>().unwrap().to_string(), 2));
}
