//! Which process reads what.

use crate::lake::FileId;

/// What opening a file costs, in bytes that could be read instead.
const OPENING: u64 = 4096;

/// Deals files by size: the largest first, each to who has least; small ones go round by `first`.
pub(super) fn deal(files: &[FileId], processes: usize, first: usize) -> Vec<(usize, Vec<FileId>)> {
    let mut shares: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); processes.max(1)];
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(files.get(*at).map_or(0, |file| file.size)));
    let count = shares.len();
    for at in order {
        let least = (0..count).min_by_key(|process| {
            let load = shares.get(*process).map_or(0, |share| share.0);
            (load, (process + count - first % count) % count)
        });
        if let Some(share) = least.and_then(|process| shares.get_mut(process)) {
            // Opening a file costs something, too.
            share.0 = share.0.saturating_add(files.get(at).map_or(0, |file| file.size)).saturating_add(OPENING);
            share.1.push(at);
        }
    }
    let shares = shares.into_iter().enumerate().filter(|(_, (_, share))| !share.is_empty());
    shares
        .map(|(process, (_, mut share))| {
            share.sort_unstable();
            (process, share.into_iter().filter_map(|at| files.get(at).cloned()).collect())
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn files(sizes: &[u64]) -> Vec<FileId> {
        let file = |(i, size): (usize, &u64)| FileId { path: format!("{i}"), size: *size, modified_micros: 0 };
        sizes.iter().enumerate().map(file).collect()
    }

    #[test]
    fn files_are_dealt_whole_and_evenly() {
        let sizes: Vec<u64> = (0..40).map(|i: u64| (i * 7919) % 1_000_003).collect();
        let all = files(&sizes);
        for processes in 1..5 {
            let dealt = deal(&all, processes, 3);
            let mut back: Vec<FileId> = dealt.iter().flat_map(|(_, files)| files.clone()).collect();
            back.sort_by_key(|file| file.path.parse::<usize>().unwrap());
            assert_eq!(back, all);
            let loads: Vec<u64> = dealt.iter().map(|(_, files)| files.iter().map(|f| f.size).sum()).collect();
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            assert!(most - least <= *sizes.iter().max().unwrap(), "{loads:?}");
            assert!(dealt.iter().all(|(_, files)| files.is_sorted_by_key(|f| f.path.parse::<usize>().unwrap())));
        }
    }

    #[test]
    fn single_files_of_several_sources_go_round() {
        let one = files(&[10]);
        let whom: Vec<usize> = (0..4).map(|source| deal(&one, 3, source).first().unwrap().0).collect();
        assert_eq!(whom, [0, 1, 2, 0]);
        assert!(deal(&[], 3, 0).is_empty());
    }
}
