// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Root is the path where the root of the host is mounted; "" if it is not.
type Root string

// path returns the path of a host's file below the root. It resolves symbolic links as the host would.
func (r Root) path(onHost string) string {
	root := cmp.Or(string(r), "/")
	path, err := securejoin.SecureJoin(root, onHost)
	if err != nil { // too many links, as for the kernel
		return filepath.Join(root, onHost)
	}
	return path
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
