// SPDX-License-Identifier: Apache-2.0

// Package dirwatch tells when files in directories change, by inotify instead of a timer.
package dirwatch

import (
	"context"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// Watcher watches directories. A nil Watcher watches none.
type Watcher struct {
	changed chan struct{}
	watches *fsnotify.Watcher
}

// New returns a Watcher of no directory yet, which ends with ctx. matters says which files it tells of; nil: all. It
// returns nil, and logs why, if there is no inotify: a user has a limited number of instances.
func New(ctx context.Context, matters func(file string) bool) *Watcher {
	watches, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Info("Changes of files are noticed late", "err", err)
		return nil
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer watches.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-watches.Events:
				if matters != nil && !matters(e.Name) {
					continue
				}
			case <-watches.Errors: //nolint:errcheck // changes were lost
			}
			select {
			case changed <- struct{}{}:
			default: // one is pending
			}
		}
	}()
	return &Watcher{changed, watches}
}

// Keep watches the directories, besides those of earlier calls. It ignores those that do not exist. It must be repeated
// now and then: a directory that was removed and made again, or mounted over, is another one.
func (w *Watcher) Keep(dirs ...string) {
	if w == nil {
		return
	}
	for _, dir := range dirs {
		_ = w.watches.Add(dir) // tried again at the next call
	}
}

// Changed has a value when files have changed since it was last received from.
func (w *Watcher) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.changed
}
