//! Literal texts as a trie, and a search for all that occur in a text, in one pass (Aho-Corasick).
//!
//! Words are numbered by their index in the sorted list that the trie is built from. Numbers have 32 bits:
//! texts come from files, which are far below 4 GiB.

use super::hash::Set;
use super::search::Work;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::ControlFlow;

const ROOT: u32 = 0;
const NO_WORD: u32 = u32::MAX;

/// The trie. The children of a node are adjacent, sorted by their bytes.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// For each node, the byte that leads to it.
    bytes: Vec<u8>,
    /// The texts of all chains.
    chains: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    first_child: u32,
    children: u32,
    word: u32,
    /// The range in `chains` of the text that follows the byte of this node.
    chain_start: u32,
    chain_len: u32,
}

const LEAF: Node =
    Node { first_child: 0, children: 0, word: NO_WORD, chain_start: 0, chain_len: 0 };

/// Whether paths without branches are compressed into one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chains {
    Compress,
    Expand,
}

impl Trie {
    /// Builds the trie of sorted and distinct words.
    pub(super) fn new(words: &[&[u8]]) -> Self {
        Self::build(words, Chains::Compress)
    }

    fn build(words: &[&[u8]], chains: Chains) -> Self {
        debug_assert!(words.is_sorted_by(|a, b| a < b));
        let mut trie = Trie { nodes: vec![LEAF], bytes: vec![0], chains: Vec::new() };
        // Each node with the words below it, and the length of its text.
        let mut open = VecDeque::from([(ROOT, 0..words.len(), 0)]);
        while let Some((node, mut below, depth)) = open.pop_front() {
            let first_child = trie.nodes.len() as u32;
            if words[below.clone()].first().is_some_and(|word| word.len() == depth) {
                trie.nodes[node as usize].word = below.start as u32;
                below.start += 1;
            }
            while !below.is_empty() {
                let byte = words[below.start][depth];
                let same = words[below.clone()].partition_point(|word| word[depth] == byte);
                let under = below.start..below.start + same;
                let chain = match chains {
                    // A common prefix of the first and the last word is common to all.
                    Chains::Compress => {
                        common(&words[under.start][depth + 1..], &words[under.end - 1][depth + 1..])
                    }
                    Chains::Expand => &[],
                };
                below.start = under.end;
                open.push_back((trie.nodes.len() as u32, under, depth + 1 + chain.len()));
                trie.push(byte, chain);
            }
            let children = trie.nodes.len() as u32 - first_child;
            let node = &mut trie.nodes[node as usize];
            (node.first_child, node.children) = (first_child, children);
        }
        trie
    }

    fn push(&mut self, byte: u8, chain: &[u8]) {
        let (chain_start, chain_len) = (self.chains.len() as u32, chain.len() as u32);
        self.chains.extend_from_slice(chain);
        self.nodes.push(Node { chain_start, chain_len, ..LEAF });
        self.bytes.push(byte);
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let Node { first_child, children, .. } = self.nodes[node as usize];
        let start = first_child as usize;
        let bytes = &self.bytes[start..start + children as usize];
        let index = match bytes {
            [] => return None,
            [only] => (*only == byte).then_some(0),
            few if few.len() <= 8 => few.iter().position(|b| *b == byte),
            many => many.binary_search(&byte).ok(),
        };
        index.map(|index| first_child + index as u32)
    }

    fn word(&self, node: u32) -> Option<usize> {
        let word = self.nodes[node as usize].word;
        (word != NO_WORD).then_some(word as usize)
    }

    /// Visits the words that `text` starts with, shortest first, with their lengths.
    pub(super) fn starts_of(
        &self,
        mut text: impl Iterator<Item = u8>,
        work: &Work,
        mut visit: impl FnMut(usize, usize),
    ) {
        let mut node = ROOT;
        let mut len = 0;
        loop {
            if let Some(word) = self.word(node) {
                visit(word, len);
            }
            let Some(byte) = text.next() else { break };
            work.add(1);
            let Some(child) = self.child(node, byte) else { break };
            let Node { chain_start, chain_len, .. } = self.nodes[child as usize];
            let chain = &self.chains[chain_start as usize..][..chain_len as usize];
            work.add(chain.len());
            if chain.iter().any(|byte| text.next() != Some(*byte)) {
                break;
            }
            node = child;
            len += 1 + chain.len();
        }
    }
}

fn common<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let len = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    &a[..len]
}

/// Finds all words that occur in a text.
#[derive(Debug)]
pub(super) struct Finder {
    trie: Trie,
    /// For each node, the node of its text's longest proper suffix in the trie.
    fallback: Vec<u32>,
    /// For each node, the next node with a word along the fallbacks; the root if there is none.
    next_word: Vec<u32>,
}

impl Finder {
    /// Builds the search for sorted, distinct and non-empty words.
    pub(super) fn new(words: &[&[u8]]) -> Self {
        debug_assert!(words.iter().all(|word| !word.is_empty()));
        let trie = Trie::build(words, Chains::Expand);
        let count = trie.nodes.len();
        let mut finder = Finder { trie, fallback: vec![ROOT; count], next_word: vec![ROOT; count] };
        let work = Work::default();
        // Nodes are numbered by level, so those of shorter texts are complete.
        for node in 0..count as u32 {
            let Node { first_child, children, .. } = finder.trie.nodes[node as usize];
            for child in first_child..first_child + children {
                if node == ROOT {
                    continue;
                }
                let byte = finder.trie.bytes[child as usize];
                let fallback = finder.step(finder.fallback[node as usize], byte, &work);
                let has_word = finder.trie.word(fallback).is_some();
                finder.fallback[child as usize] = fallback;
                finder.next_word[child as usize] =
                    if has_word { fallback } else { finder.next_word[fallback as usize] };
            }
        }
        finder
    }

    fn step(&self, mut node: u32, byte: u8, work: &Work) -> u32 {
        loop {
            work.add(1);
            if let Some(child) = self.trie.child(node, byte) {
                return child;
            }
            if node == ROOT {
                return ROOT;
            }
            node = self.fallback[node as usize];
        }
    }

    /// Visits each word that occurs in `text` once, until `visit` breaks. Linear in the text.
    pub(super) fn words_in(
        &self,
        text: &[u8],
        work: &Work,
        mut visit: impl FnMut(usize) -> ControlFlow<()>,
    ) {
        let mut seen: Set<usize> = Set::default();
        let mut node = ROOT;
        for &byte in text {
            node = self.step(node, byte, work);
            let mut at =
                if self.trie.word(node).is_some() { node } else { self.next_word[node as usize] };
            // The suffixes of a word that was seen have been visited with it.
            while let Some(word) = self.trie.word(at).filter(|word| seen.insert(*word)) {
                work.add(1);
                if visit(word).is_break() {
                    return;
                }
                at = self.next_word[at as usize];
            }
        }
    }
}

/// Groups items by the least common of their words; of equally common words, by the longest. Items without
/// words are left out.
pub(super) fn by_rarest<'w, T>(
    items: impl IntoIterator<Item = (T, &'w [&'w str])> + Clone,
) -> BTreeMap<&'w str, Vec<T>> {
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for word in items.clone().into_iter().flat_map(|(_, words)| words) {
        *uses.entry(word).or_default() += 1;
    }
    let mut filed: BTreeMap<&str, Vec<T>> = BTreeMap::new();
    for (item, words) in items {
        let rarest = words.iter().min_by_key(|word| (uses[**word], usize::MAX - word.len()));
        if let Some(rarest) = rarest {
            filed.entry(rarest).or_default().push(item);
        }
    }
    filed
}
