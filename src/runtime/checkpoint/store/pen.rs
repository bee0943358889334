//! Puts blocks into objects.

use std::collections::HashMap;

use bytes::Bytes;
use silverflow_operators::{Sealed, checksums};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::runtime::checkpoint::format::{Block, HEADER, LARGE_AT, header};

/// Blocks of this size have an object of their own, so that it goes when they do.
const LARGE: usize = 4 << 20;
/// Size at which an object of small blocks is full.
const FULL: u64 = 64 << 20;

/// Puts blocks into objects. Nothing is copied: an object is a list of parts, to be written end to end.
pub(super) struct Pen {
    prefix: String,
    objects: Vec<String>,
    known: HashMap<String, usize>,
    files: Vec<(String, Vec<Bytes>)>,
    /// The object that small blocks go to, and its length.
    open: Option<(usize, u64, Vec<Bytes>)>,
}

impl Pen {
    pub(super) fn new(epoch: u64) -> Pen {
        let prefix = format!("{epoch:020}-{}", uuid::Uuid::new_v4().simple());
        Pen { prefix, objects: Vec::new(), known: HashMap::new(), files: Vec::new(), open: None }
    }

    /// The place of an object among the manifest's.
    pub(super) fn object(&mut self, name: &str) -> usize {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        self.objects.push(name.to_owned());
        self.known.insert(name.to_owned(), self.objects.len() - 1);
        self.objects.len() - 1
    }

    fn new_object(&mut self) -> usize {
        let name = format!("{}.{}.state", self.prefix, self.objects.len());
        self.object(&name)
    }

    fn write(&mut self, object: usize, parts: Vec<Bytes>) {
        let name = self.objects.get(object).cloned().unwrap_or_default();
        self.files.push((name, parts));
    }

    /// A block of entries.
    pub(super) fn entries(&mut self, sealed: &Sealed) -> Block {
        let (parts, length) = (sealed.parts(), sealed.encoded_len());
        if length < LARGE {
            return self.small(parts);
        }
        let sums = Bytes::from(checksums(&parts));
        let xxh3 = xxh3_64(&sums);
        let object = self.new_object();
        let mut head = header().to_vec();
        head.resize(LARGE_AT, 0);
        let whole = std::iter::once(head.into()).chain(parts).chain([sums]).collect();
        self.write(object, whole);
        Block { object, offset: LARGE_AT as u64, length: length as u64, xxh3, chunked: true }
    }

    /// A block that is read as a whole.
    pub(super) fn small(&mut self, parts: Vec<Bytes>) -> Block {
        let (object, offset, mut file) = match self.open.take() {
            Some(open) => open,
            None => (self.new_object(), HEADER as u64, vec![Bytes::copy_from_slice(&header())]),
        };
        let mut hash = Xxh3::new();
        parts.iter().for_each(|part| hash.update(part));
        let length = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        file.extend(parts);
        if offset + length >= FULL {
            self.write(object, file);
        } else {
            self.open = Some((object, offset + length, file));
        }
        Block { object, offset, length, xxh3: hash.digest(), chunked: false }
    }

    /// The names of all objects, and those that are new, to be written.
    pub(super) fn finish(mut self) -> (Vec<String>, Vec<(String, Vec<Bytes>)>) {
        if let Some((object, _, file)) = self.open.take() {
            self.write(object, file);
        }
        (self.objects, self.files)
    }
}
