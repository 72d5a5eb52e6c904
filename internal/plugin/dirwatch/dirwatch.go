// SPDX-License-Identifier: Apache-2.0

// Package dirwatch tells when files in directories change, by inotify instead of a timer.
package dirwatch

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

// Watcher watches directories. A nil Watcher watches none.
type Watcher struct {
	matters func(file string) bool
	changed chan struct{}
	dirs    sets.Set[string]
}

// shared is the inotify instance of all Watchers of the process: a user has a limited number of instances, for all
// programs of a node together. Its methods are called without the lock: they may wait for what receive does.
var shared struct {
	sync.Mutex
	inotify  *fsnotify.Watcher // nil: there are no Watchers, or the programs of the node have used up all instances
	missing  string            // why there is none although there are Watchers
	watchers sets.Set[*Watcher]
}

// New returns a Watcher of no directory yet, which ends with ctx. matters says which files it tells of; nil: all.
func New(ctx context.Context, matters func(file string) bool) *Watcher {
	shared.Lock()
	defer shared.Unlock()
	w := &Watcher{matters: matters, changed: make(chan struct{}, 1), dirs: sets.New[string]()}
	if shared.watchers == nil {
		shared.watchers = sets.New[*Watcher]()
	}
	shared.watchers.Insert(w)
	open()
	context.AfterFunc(ctx, w.end)
	return w
}

// open opens the inotify instance, and logs what has changed. If there is none, it is tried again at each Keep: other
// programs may use less by then. The caller holds the lock.
func open() {
	if shared.inotify != nil {
		return
	}
	why := ""
	inotify, err := fsnotify.NewWatcher()
	if err == nil {
		shared.inotify = inotify
		go receive(inotify)
	} else {
		why = err.Error()
	}
	if why != shared.missing {
		klog.Background().Info("Changes of files are noticed", "late", err != nil, "why", why)
	}
	shared.missing = why
}

// receive tells the Watchers what the inotify instance says, until it is closed.
func receive(inotify *fsnotify.Watcher) {
	for {
		select {
		case e, open := <-inotify.Events:
			if !open {
				return
			}
			tell(func(w *Watcher) bool { return w.concerns(e.Name) })
		case _, open := <-inotify.Errors:
			if !open {
				return
			}
			tell(func(*Watcher) bool { return true }) // changes were lost
		}
	}
}

func tell(concerned func(*Watcher) bool) {
	shared.Lock()
	defer shared.Unlock()
	for w := range shared.watchers {
		if !concerned(w) {
			continue
		}
		select {
		case w.changed <- struct{}{}:
		default: // one is pending
		}
	}
}

// concerns reports whether the Watcher tells of a change of the file, or of one of its directories.
func (w *Watcher) concerns(file string) bool {
	return (w.dirs.Has(filepath.Dir(file)) || w.dirs.Has(file)) && (w.matters == nil || w.matters(file))
}

// end closes the inotify instance with the last Watcher.
func (w *Watcher) end() {
	shared.Lock()
	inotify := shared.inotify
	shared.watchers.Delete(w)
	last := len(shared.watchers) == 0
	if last {
		shared.inotify = nil
	}
	shared.Unlock()
	if last && inotify != nil {
		_ = inotify.Close()
	}
}

// Keep watches the directories, besides those of earlier calls. It ignores those that do not exist. It must be repeated
// now and then: a directory that was removed and made again, or mounted over, is another one.
func (w *Watcher) Keep(dirs ...string) {
	if w == nil {
		return
	}
	shared.Lock()
	ended := !shared.watchers.Has(w)
	if !ended {
		open()
	}
	inotify := shared.inotify
	for _, dir := range dirs {
		w.dirs.Insert(filepath.Clean(dir))
	}
	shared.Unlock()
	if ended || inotify == nil {
		return
	}
	for _, dir := range dirs {
		_ = inotify.Add(dir) // tried again at the next call
	}
	watched := sets.New(inotify.WatchList()...)
	shared.Lock()
	w.dirs = w.dirs.Intersection(watched) // without those that have been removed
	shared.Unlock()
}

// Changed has a value when files have changed since it was last received from.
func (w *Watcher) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.changed
}
