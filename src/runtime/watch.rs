//! Tells of files that land, where the system does: inotify on Linux. Elsewhere, and on file systems of other machines,
//! nothing is told, and looking has to do.

use std::path::PathBuf;

use crossbeam_channel::{Receiver, unbounded};

/// Watches folders until it is dropped.
pub(super) struct Watch {
    /// Files that a writer has closed or moved into place, and folders in which something else has changed.
    pub(super) notices: Receiver<PathBuf>,
    #[cfg(target_os = "linux")]
    _watcher: Option<linux::Watcher>,
}

impl Watch {
    /// Watches folders; those that cannot be watched are left out.
    pub(super) fn new(folders: &[PathBuf]) -> Watch {
        let (sender, notices) = unbounded();
        #[cfg(target_os = "linux")]
        let watcher = linux::Watcher::start(folders, sender)
            .inspect_err(|error| tracing::info!("the system does not tell of files that land: {error}"))
            .ok()
            .flatten();
        #[cfg(not(target_os = "linux"))]
        drop((folders, sender));
        Watch {
            notices,
            #[cfg(target_os = "linux")]
            _watcher: watcher,
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use crossbeam_channel::Sender;
    use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};

    const BUFFER: usize = 16 << 10;

    pub(super) struct Watcher {
        ended: Arc<AtomicBool>,
        watches: Watches,
        first: WatchDescriptor,
        thread: Option<JoinHandle<()>>,
    }

    fn mask() -> WatchMask {
        WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::ONLYDIR
    }

    impl Watcher {
        pub(super) fn start(folders: &[PathBuf], notices: Sender<PathBuf>) -> io::Result<Option<Watcher>> {
            let inotify = Inotify::init()?;
            let mut watches = inotify.watches();
            let mut known = HashMap::new();
            for folder in folders {
                match watches.add(folder, mask()) {
                    Ok(descriptor) => drop(known.insert(descriptor, folder.clone())),
                    Err(error) => tracing::info!("{} is not watched: {error}", folder.display()),
                }
            }
            let Some(first) = known.keys().next().cloned() else { return Ok(None) };
            let ended = Arc::new(AtomicBool::new(false));
            let thread = {
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || tell(inotify, known, &notices, &ended))
            };
            Ok(Some(Watcher { ended, watches, first, thread: Some(thread) }))
        }
    }

    impl Drop for Watcher {
        fn drop(&mut self) {
            self.ended.store(true, Ordering::SeqCst);
            // Taking a watch away is an event, which wakes the thread. Without it, the thread would wait on; it does no harm.
            if self.watches.remove(self.first.clone()).is_ok()
                && let Some(thread) = self.thread.take()
            {
                let _ = thread.join();
            }
        }
    }

    fn tell(
        mut inotify: Inotify,
        mut known: HashMap<WatchDescriptor, PathBuf>,
        notices: &Sender<PathBuf>,
        ended: &AtomicBool,
    ) {
        let mut watches = inotify.watches();
        let mut buffer = vec![0; BUFFER];
        loop {
            let events = match inotify.read_events_blocking(&mut buffer) {
                Ok(events) => events,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!("the system no longer tells of files that land: {error}");
                    return;
                }
            };
            if ended.load(Ordering::SeqCst) {
                return;
            }
            for event in events {
                // Also where some events were lost: a look finds what they were about.
                let Some(folder) = known.get(&event.wd) else {
                    let _ = notices.send(PathBuf::new());
                    continue;
                };
                let path = event.name.map_or_else(|| folder.clone(), |name| folder.join(name));
                if event.mask.contains(EventMask::ISDIR) {
                    if let Ok(descriptor) = watches.add(&path, mask()) {
                        known.insert(descriptor, path.clone());
                    }
                } else if !event.mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
                    continue;
                }
                if notices.send(path).is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn files_that_land_are_told_also_in_new_folders() {
        let folder = tempfile::tempdir().unwrap();
        let landing = folder.path().join("landing");
        fs::create_dir(&landing).unwrap();
        let watch = Watch::new(&[landing.clone(), folder.path().join("none")]);
        fs::write(landing.join("a"), "a").unwrap();
        assert_eq!(watch.notices.recv_timeout(PATIENCE).unwrap(), landing.join("a"));
        fs::write(folder.path().join("b"), "b").unwrap();
        fs::rename(folder.path().join("b"), landing.join("b")).unwrap();
        assert_eq!(watch.notices.recv_timeout(PATIENCE).unwrap(), landing.join("b"));
        fs::create_dir(landing.join("sub")).unwrap();
        assert_eq!(watch.notices.recv_timeout(PATIENCE).unwrap(), landing.join("sub"));
        fs::write(landing.join("sub/c"), "c").unwrap();
        assert_eq!(watch.notices.recv_timeout(PATIENCE).unwrap(), landing.join("sub/c"));
    }
}
