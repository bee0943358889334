//! What befalls a storage: a process that dies at a step, a disk that is full, a machine that loses its power.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use silverflow::lake::faults::{Fate, Faults, Step};

use crate::support::Dice;

/// Dies at a step: nothing that comes after it happens.
#[derive(Debug)]
pub(crate) struct Death {
    at: usize,
    halfway: bool,
    steps: AtomicUsize,
    dead: AtomicBool,
}

impl Death {
    /// Dies before step `at`, or in the middle of it.
    pub(crate) fn at(at: usize, halfway: bool) -> Death {
        Death { at, halfway, steps: AtomicUsize::new(0), dead: AtomicBool::new(false) }
    }

    /// Never dies, and counts.
    pub(crate) fn never() -> Death {
        Death::at(usize::MAX, false)
    }

    /// Steps up to now.
    pub(crate) fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }

    /// Whether it has come to that.
    pub(crate) fn happened(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl Faults for Death {
    fn before(&self, _: Step<'_>) -> Fate {
        let gone = || io::Error::other("the process is gone");
        if self.dead.load(Ordering::SeqCst) {
            return Fate::Fails(gone());
        }
        if self.steps.fetch_add(1, Ordering::SeqCst) != self.at {
            return Fate::Happens;
        }
        self.dead.store(true, Ordering::SeqCst);
        if self.halfway { Fate::FailsHalfway(gone()) } else { Fate::Fails(gone()) }
    }

    fn after(&self, _: Step<'_>) {}
}

/// Some of the steps.
pub(crate) type Steps = fn(Step<'_>) -> bool;

/// Lets some steps fail for a while.
pub(crate) struct Trouble {
    /// Which steps.
    pub(crate) steps: Steps,
    /// As the operating system numbers it.
    pub(crate) error: i32,
    /// How often.
    pub(crate) times: AtomicUsize,
}

impl std::fmt::Debug for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trouble").field("error", &self.error).field("times", &self.times).finish_non_exhaustive()
    }
}

/// No space is left on the device.
pub(crate) const ENOSPC: i32 = 28;
/// Permission denied.
pub(crate) const EACCES: i32 = 13;
/// Input or output error.
pub(crate) const EIO: i32 = 5;

impl Trouble {
    /// The next `times` of these steps end with this error.
    pub(crate) fn new(steps: Steps, error: i32, times: usize) -> Trouble {
        Trouble { steps, error, times: AtomicUsize::new(times) }
    }
}

impl Faults for Trouble {
    fn before(&self, step: Step<'_>) -> Fate {
        let left = || self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        if (self.steps)(step) && left() { Fate::Fails(io::Error::from_raw_os_error(self.error)) } else { Fate::Happens }
    }

    fn after(&self, _: Step<'_>) {}
}

/// A step that has happened.
#[derive(Clone, Debug)]
enum Event {
    Folder(PathBuf),
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    SyncFile(PathBuf),
    SyncFolder(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    Put(PathBuf, Vec<u8>),
}

/// Keeps everything that has happened to a folder.
#[derive(Debug)]
pub(crate) struct Journal {
    root: PathBuf,
    /// So many events stand for what was there at the beginning.
    before: usize,
    events: Mutex<Vec<Event>>,
}

/// What would have made a folder as it is.
fn made(folder: &Path, events: &mut Vec<Event>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            events.push(Event::Folder(path.clone()));
            made(&path, events);
        } else {
            let bytes = fs::read(&path).unwrap();
            events.extend([Event::Create(path.clone()), Event::Write(path.clone(), bytes), Event::SyncFile(path)]);
        }
    }
    events.push(Event::SyncFolder(folder.to_owned()));
}

impl Journal {
    /// The journal of the folder at an absolute path, from now on.
    pub(crate) fn of(root: &Path) -> Journal {
        let mut events = Vec::new();
        made(root, &mut events);
        Journal { root: root.to_owned(), before: events.len(), events: Mutex::new(events) }
    }

    /// Every state in which a process that dies can leave the folder, in order: after each step, and in the middle of
    /// each write. States that differ only in temporary files are one.
    pub(crate) fn deaths(&self) -> Vec<Image> {
        self.images(|disk, seen, images| {
            let image = disk.now(&self.root);
            if seen.insert(image.visible()) {
                images.push(image);
            }
        })
    }

    /// Every state in which a loss of power can leave the folder, if nothing survives that was not synced; and after
    /// each step one in which some of it survives, as the dice fall.
    pub(crate) fn power_losses(&self, dice: &mut Dice) -> Vec<Image> {
        self.images(|disk, seen, images| {
            for image in [disk.durable(&self.root), disk.torn(&self.root, dice)] {
                if seen.insert(image.visible()) {
                    images.push(image);
                }
            }
        })
    }

    fn images(&self, mut look: impl FnMut(&Disk, &mut BTreeSet<Visible>, &mut Vec<Image>)) -> Vec<Image> {
        let (mut disk, mut seen, mut images) = (Disk::default(), BTreeSet::new(), Vec::new());
        let events = self.events.lock().unwrap();
        let (before, events) = events.split_at(self.before);
        before.iter().for_each(|event| disk.happen(event));
        look(&disk, &mut seen, &mut images);
        for event in events {
            if let Event::Write(path, bytes) = event {
                disk.happen(&Event::Write(path.clone(), bytes[..bytes.len() / 2].to_vec()));
                look(&disk, &mut seen, &mut images);
            }
            disk.happen(event);
            look(&disk, &mut seen, &mut images);
        }
        images
    }
}

impl Faults for Journal {
    fn before(&self, _: Step<'_>) -> Fate {
        Fate::Happens
    }

    fn after(&self, step: Step<'_>) {
        // An object store has no leading slash.
        let own = |path: &Path| if path.is_absolute() { path.to_owned() } else { Path::new("/").join(path) };
        let event = match step {
            Step::MakeFolder(path) => Event::Folder(own(path)),
            Step::Create(path) => Event::Create(own(path)),
            Step::Write(path, bytes) => Event::Write(own(path), bytes.to_vec()),
            Step::SyncFile(path) => Event::SyncFile(own(path)),
            Step::SyncFolder(path) => Event::SyncFolder(own(path)),
            Step::Link(from, to) => Event::Link(own(from), own(to)),
            Step::Rename(from, to) => Event::Rename(own(from), own(to)),
            Step::Remove(path) => Event::Remove(own(path)),
            Step::Put(path, bytes) => Event::Put(own(path), bytes.to_vec()),
            Step::Read(_) | Step::List(_) => return,
        };
        self.events.lock().unwrap().push(event);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File(usize),
}

#[derive(Clone, Debug, Default)]
struct File {
    now: Vec<u8>,
    durable: Option<Vec<u8>>,
}

/// A disk as POSIX has it: a sync of a file keeps its bytes, a sync of a folder keeps its names, nothing else keeps
/// anything.
#[derive(Debug, Default)]
struct Disk {
    files: Vec<File>,
    now: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
}

impl Disk {
    fn file(&mut self, path: &Path) -> &mut File {
        let Some(Entry::File(id)) = self.now.get(path) else { panic!("no file {}", path.display()) };
        &mut self.files[*id]
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Folder(path) => {
                self.now.insert(path.clone(), Entry::Folder);
            }
            Event::Create(path) => {
                self.now.insert(path.clone(), Entry::File(self.files.len()));
                self.files.push(File::default());
            }
            Event::Write(path, bytes) => self.file(path).now.clone_from(bytes),
            Event::SyncFile(path) => {
                let file = self.file(path);
                file.durable = Some(file.now.clone());
            }
            Event::SyncFolder(folder) => {
                let inside = |path: &Path| path.parent() == Some(folder);
                self.durable.retain(|path, _| !inside(path));
                let names = self.now.iter().filter(|(path, _)| inside(path));
                self.durable.extend(names.map(|(path, entry)| (path.clone(), *entry)));
            }
            Event::Link(from, to) => {
                let entry = self.now[from];
                self.now.insert(to.clone(), entry);
            }
            Event::Rename(from, to) => {
                let entry = self.now.remove(from).unwrap();
                self.now.insert(to.clone(), entry);
            }
            Event::Remove(path) => {
                self.now.remove(path);
            }
            Event::Put(path, bytes) => {
                for folder in path.ancestors().skip(1) {
                    self.now.insert(folder.to_owned(), Entry::Folder);
                    self.durable.insert(folder.to_owned(), Entry::Folder);
                }
                let entry = Entry::File(self.files.len());
                self.files.push(File { now: bytes.clone(), durable: Some(bytes.clone()) });
                self.now.insert(path.clone(), entry);
                self.durable.insert(path.clone(), entry);
            }
        }
    }

    /// As it is for whoever looks now.
    fn now(&self, root: &Path) -> Image {
        self.image(root, &self.now, |file| file.now.clone())
    }

    /// What is there for sure after a loss of power.
    fn durable(&self, root: &Path) -> Image {
        self.image(root, &self.durable, |file| file.durable.clone().unwrap_or_default())
    }

    /// What may be there after a loss of power: any name and any bytes may have made it or not.
    fn torn(&self, root: &Path, dice: &mut Dice) -> Image {
        let names: BTreeSet<&PathBuf> = self.now.keys().chain(self.durable.keys()).collect();
        let mut entries = BTreeMap::new();
        for name in names {
            let entry = if dice.once_in(2) { self.now.get(name) } else { self.durable.get(name) };
            entries.extend(entry.map(|entry| (name.clone(), *entry)));
        }
        let dice = Mutex::new(dice);
        self.image(root, &entries, |file| {
            let durable = file.durable.as_ref();
            match dice.lock().unwrap().below(3) {
                0 => file.now.clone(),
                1 if durable.is_none() => file.now[..file.now.len() / 2].to_vec(),
                _ => durable.cloned().unwrap_or_default(),
            }
        })
    }

    fn image(&self, root: &Path, entries: &BTreeMap<PathBuf, Entry>, bytes: impl Fn(&File) -> Vec<u8>) -> Image {
        let mut image = Image::default();
        for (path, entry) in entries {
            let Ok(inside) = path.strip_prefix(root) else { continue };
            let reachable = inside
                .ancestors()
                .skip(1)
                .all(|x| x.as_os_str().is_empty() || matches!(entries.get(&root.join(x)), Some(Entry::Folder)));
            if !reachable || inside.as_os_str().is_empty() {
                continue;
            }
            match entry {
                Entry::Folder => image.folders.insert(inside.to_owned()),
                Entry::File(id) => image.files.insert(inside.to_owned(), bytes(&self.files[*id])).is_none(),
            };
        }
        image
    }
}

/// What a folder holds, as readers see it.
type Visible = BTreeMap<PathBuf, Vec<u8>>;

/// What a folder holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    folders: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    fn visible(&self) -> Visible {
        let shown = |path: &Path| !path.to_string_lossy().contains('#');
        self.files.iter().filter(|(path, _)| shown(path)).map(|(path, bytes)| (path.clone(), bytes.clone())).collect()
    }

    /// Makes a folder hold this and nothing else.
    pub(crate) fn restore(&self, root: &Path) {
        let _ = fs::remove_dir_all(root);
        fs::create_dir_all(root).unwrap();
        for folder in &self.folders {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (path, bytes) in &self.files {
            fs::write(root.join(path), bytes).unwrap();
        }
    }

    /// Whether there is a file whose path has this in it.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.visible().keys().any(|path| path.to_string_lossy().contains(part))
    }

    /// The names of the files, for messages.
    pub(crate) fn describe(&self) -> String {
        self.files.iter().map(|(path, bytes)| format!("\n  {} ({} bytes)", path.display(), bytes.len())).collect()
    }
}
