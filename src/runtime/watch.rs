//! Tells of files that land, where the system does: inotify on Linux. Elsewhere, and on file systems of other machines,
//! nothing is told, and looking has to do.

use std::path::PathBuf;

#[cfg(target_os = "linux")]
use crossbeam_channel::unbounded;
use crossbeam_channel::{Receiver, never};

use crate::sources::Landing;

/// What the system tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A writer has closed the file, or moved it into place.
    Whole(PathBuf),
    /// Something else has changed, or notices were lost: only a listing shows what there is.
    Anything,
    /// A folder is not watched any more. As `Anything`; and from now on less is told.
    Lost,
}

/// Watches folders until it is dropped.
pub(super) struct Watch {
    /// Silent where nothing is told.
    pub(super) notices: Receiver<Notice>,
    /// Whether everything that lands on this machine is told.
    pub(super) complete: bool,
    #[cfg(target_os = "linux")]
    _watcher: Option<linux::Watcher>,
}

impl Watch {
    /// Watches the places where files land, also those that are not there yet; what cannot be watched is left out.
    pub(super) fn new(places: Vec<Landing>) -> Watch {
        #[cfg(target_os = "linux")]
        {
            let (sender, notices) = unbounded();
            let started = linux::Watcher::start(places, sender);
            let started = started.inspect_err(|e| tracing::info!("the system does not tell of files that land: {e}"));
            let Ok((watcher, complete)) = started else { return Watch::blind() };
            Watch { notices, complete, _watcher: Some(watcher) }
        }
        #[cfg(not(target_os = "linux"))]
        {
            drop(places);
            Watch::blind()
        }
    }

    /// Tells nothing.
    pub(super) fn blind() -> Watch {
        Watch {
            notices: never(),
            complete: false,
            #[cfg(target_os = "linux")]
            _watcher: None,
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::ffi::OsStr;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use crossbeam_channel::Sender;
    use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};

    use super::Notice;
    use crate::sources::Landing;

    const BUFFER: usize = 16 << 10;

    pub(super) struct Watcher {
        ended: Arc<AtomicBool>,
        watches: Watches,
        bell: WatchDescriptor,
        thread: Option<JoinHandle<()>>,
    }

    /// The folders that are watched.
    struct Folders {
        places: Vec<Landing>,
        watches: Watches,
        known: HashMap<WatchDescriptor, PathBuf>,
    }

    impl Folders {
        fn add(&mut self, folder: &Path) -> bool {
            let mask = WatchMask::CLOSE_WRITE
                | WatchMask::MOVED_TO
                | WatchMask::CREATE
                | WatchMask::DELETE_SELF
                | WatchMask::MOVE_SELF
                | WatchMask::ONLYDIR;
            match self.watches.add(folder, mask) {
                Ok(descriptor) => {
                    self.known.insert(descriptor, folder.to_owned());
                    true
                }
                Err(error) => {
                    tracing::info!("{} is not watched: {error}", folder.display());
                    false
                }
            }
        }

        /// Watches each place as far as it is there: its folders, or the nearest one above it.
        fn add_all(&mut self) -> bool {
            let mut complete = true;
            for place in self.places.clone() {
                let mut watched = Vec::new();
                // What comes into a folder before it is watched is not told: once it is, all is looked at again.
                loop {
                    let there = there(&place);
                    if there.is_empty() {
                        complete = false;
                    }
                    if there == watched {
                        break;
                    }
                    for folder in &there {
                        complete &= watched.contains(folder) || self.add(folder);
                    }
                    watched = there;
                }
            }
            complete
        }

        /// What an event means; nothing if it is about something that nobody reads.
        fn notice(&mut self, folder: &WatchDescriptor, mask: EventMask, name: Option<&OsStr>) -> Option<Notice> {
            if mask.contains(EventMask::Q_OVERFLOW) {
                return Some(Notice::Anything);
            }
            if mask.intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT) {
                return Some(Notice::Lost);
            }
            let path = self.known.get(folder)?.join(name?);
            if mask.contains(EventMask::ISDIR) {
                let leads =
                    |place: &Landing| place.root.starts_with(&path) || place.deep && path.starts_with(&place.root);
                if !self.places.iter().any(leads) {
                    return None;
                }
                // Folders may have come into it before it was watched.
                return Some(if self.add_all() { Notice::Anything } else { Notice::Lost });
            }
            let written = mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO);
            (written && self.places.iter().any(|place| place.has(&path))).then_some(Notice::Whole(path))
        }
    }

    /// The folders of a place, or the nearest one above it; none if there is none.
    fn there(place: &Landing) -> Vec<PathBuf> {
        let mut there = match place.root.ancestors().find(|folder| folder.is_dir()) {
            Some(there) if there == place.root => place.folders(),
            Some(above) => vec![above.to_owned()],
            None => Vec::new(),
        };
        there.sort();
        there
    }

    impl Watcher {
        /// Also says whether all of the places are watched.
        pub(super) fn start(places: Vec<Landing>, notices: Sender<Notice>) -> io::Result<(Watcher, bool)> {
            let inotify = Inotify::init()?;
            let mut watches = inotify.watches();
            // Taking a watch away is an event, which wakes the thread when it is to end.
            let bell = watches.add(std::env::temp_dir(), WatchMask::DELETE_SELF)?;
            let mut folders = Folders { places, watches: watches.clone(), known: HashMap::new() };
            let complete = folders.add_all();
            let ended = Arc::new(AtomicBool::new(false));
            let thread = {
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || tell(inotify, folders, &notices, &ended))
            };
            Ok((Watcher { ended, watches, bell, thread: Some(thread) }, complete))
        }
    }

    impl Drop for Watcher {
        fn drop(&mut self) {
            self.ended.store(true, Ordering::SeqCst);
            // Without the event the thread would wait on; it does no harm.
            if self.watches.remove(self.bell.clone()).is_ok()
                && let Some(thread) = self.thread.take()
            {
                let _ = thread.join();
            }
        }
    }

    fn tell(mut inotify: Inotify, mut folders: Folders, notices: &Sender<Notice>, ended: &AtomicBool) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let events = match inotify.read_events_blocking(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!("the system no longer tells of files that land: {error}");
                    let _ = notices.send(Notice::Lost);
                    return;
                }
            };
            if ended.load(Ordering::SeqCst) {
                return;
            }
            for event in events {
                if let Some(notice) = folders.notice(&event.wd, event.mask, event.name)
                    && notices.send(notice).is_err()
                {
                    return;
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used)]

        use super::*;

        /// Folders come while they are being watched.
        #[test]
        fn no_folder_is_missed_however_fast_it_comes() {
            for _ in 0..200 {
                let folder = tempfile::tempdir().unwrap();
                let landing = folder.path().join("some/landing");
                let (sender, notices) = crossbeam_channel::unbounded();
                let places = vec![Landing { root: landing.clone(), deep: true }];
                let (_watcher, complete) = Watcher::start(places, sender).unwrap();
                assert!(complete);
                std::fs::create_dir_all(landing.join("a/b/c")).unwrap();
                let file = landing.join("a/b/c/file");
                // The first notice says that there are folders to look into; by the last one all of them are watched.
                notices.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
                let told = |file: &Path| {
                    std::fs::write(file, "x").unwrap();
                    notices.recv_timeout(std::time::Duration::from_millis(100)) == Ok(Notice::Whole(file.to_owned()))
                };
                assert!((0..600).any(|_| told(&file)));
            }
        }

        #[test]
        fn where_notices_were_lost_only_a_listing_shows_what_there_is() {
            let folder = tempfile::tempdir().unwrap();
            let watches = Inotify::init().unwrap().watches();
            let places = vec![Landing { root: folder.path().to_owned(), deep: false }];
            let mut folders = Folders { places, watches, known: HashMap::new() };
            assert!(folders.add_all());
            let watched = folders.known.keys().next().unwrap().clone();
            assert_eq!(folders.notice(&watched, EventMask::Q_OVERFLOW, None), Some(Notice::Anything));
            let written = folders.notice(&watched, EventMask::CLOSE_WRITE, Some(OsStr::new("a")));
            assert_eq!(written, Some(Notice::Whole(folder.path().join("a"))));
            assert_eq!(folders.notice(&watched, EventMask::UNMOUNT, None), Some(Notice::Lost));
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[track_caller]
    fn told(watch: &Watch, notice: &Notice) {
        assert_eq!(watch.notices.recv_timeout(PATIENCE).as_ref(), Ok(notice));
    }

    fn whole(path: PathBuf) -> Notice {
        Notice::Whole(path)
    }

    fn watch(root: &Path, deep: bool) -> Watch {
        Watch::new(vec![Landing { root: root.to_owned(), deep }])
    }

    #[test]
    fn files_that_land_are_told_also_in_new_folders() {
        let folder = tempfile::tempdir().unwrap();
        let landing = folder.path().join("some/landing");
        let watch = watch(&landing, true);
        assert!(watch.complete);
        fs::write(folder.path().join("beside"), "").unwrap();
        fs::create_dir_all(folder.path().join("other/some")).unwrap();
        fs::create_dir_all(&landing).unwrap();
        told(&watch, &Notice::Anything);
        // By now the folder is watched, or is about to be.
        let start = Instant::now();
        while watch.notices.recv_timeout(Duration::from_millis(10)) != Ok(whole(landing.join("a"))) {
            assert!(start.elapsed() < PATIENCE);
            fs::write(landing.join("a"), "a").unwrap();
        }
        fs::write(folder.path().join("b"), "b").unwrap();
        fs::rename(folder.path().join("b"), landing.join("b")).unwrap();
        while watch.notices.recv_timeout(PATIENCE).unwrap() != whole(landing.join("b")) {}
        fs::create_dir(landing.join("sub")).unwrap();
        told(&watch, &Notice::Anything);
        fs::write(landing.join("sub/c"), "c").unwrap();
        told(&watch, &whole(landing.join("sub/c")));
        fs::remove_dir_all(&landing).unwrap();
        told(&watch, &Notice::Lost);
    }

    #[test]
    fn only_what_a_source_reads_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let landing = folder.path().join("landing");
        fs::create_dir_all(landing.join("sub")).unwrap();
        let watch = watch(&landing, false);
        fs::write(folder.path().join("beside"), "").unwrap();
        fs::write(landing.join("sub/deep"), "").unwrap();
        fs::create_dir(landing.join("more")).unwrap();
        let open = fs::File::create(landing.join("open")).unwrap();
        fs::write(landing.join("closed"), "").unwrap();
        told(&watch, &whole(landing.join("closed")));
        drop(open);
        told(&watch, &whole(landing.join("open")));
    }
}
