// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FindProfile looks for a profile by path, then in the additional directory, then among the built-in ones.
func FindProfile(name, dir string) (Profile, error) {
	file := name
	if !strings.Contains(name, "/") {
		file = filepath.Join(dir, name+".yaml")
		if _, err := os.Stat(file); dir == "" || errors.Is(err, fs.ErrNotExist) {
			return BuiltIn(name)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return Profile{}, err
	}
	profile, err := ParseProfile(text)
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", file, err)
	}
	return profile, nil
}
