// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// abandonedAfter is the age at which a temporary file is abandoned: another instance may be writing. One from as far in
// the future was written when the clock was ahead.
const abandonedAfter = 5 * time.Minute

// temporary matches the names of temporary files. The directory of the plugin has no other files whose name begins with
// a dot.
var temporary = regexp.MustCompile(`^\.[a-z].*[0-9]$`)

// removeTemporary removes temporary files of at least this age from the directory: those of instances that were killed.
func removeTemporary(dir string, age time.Duration) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !temporary.MatchString(e.Name()) ||
			time.Since(info.ModTime()).Abs() < age {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name()))) // no error if another instance has removed it
	}
	return errors.Join(errs...)
}
