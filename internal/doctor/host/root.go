// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"strings"
)

// Root is the path where the root of the host is mounted; "" if it is not.
type Root string

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// path returns the path of a host's file below the root. It resolves symbolic links as the host would.
func (r Root) path(onHost string) string {
	done, left := "/", strings.Split(onHost, "/")
	for links := 0; len(left) > 0; {
		step := left[0]
		left = left[1:]
		if step == "" || step == "." {
			continue
		}
		next := filepath.Join(done, step) // ".." at the root stays there
		target, err := os.Readlink(filepath.Join(string(r), next))
		if err != nil || links >= maxLinks {
			done = next
			continue
		}
		links++
		if filepath.IsAbs(target) {
			done = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return filepath.Join(string(r), done)
}

func (r Root) read(onHost string) ([]byte, error) { return os.ReadFile(r.path(onHost)) }

func (r Root) has(onHost string) bool {
	_, err := os.Stat(r.path(onHost))
	return err == nil
}

// glob returns the matching paths on the host. The directory of the pattern must have no wildcards.
func (r Root) glob(pattern string) []string {
	dir := filepath.Dir(pattern)
	found, err := filepath.Glob(filepath.Join(r.path(dir), filepath.Base(pattern)))
	if err != nil {
		return nil
	}
	for i, path := range found {
		found[i] = filepath.Join(dir, filepath.Base(path))
	}
	return found
}
