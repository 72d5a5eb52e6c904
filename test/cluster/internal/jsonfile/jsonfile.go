// SPDX-License-Identifier: Apache-2.0

// Package jsonfile keeps a value in a file.
package jsonfile

import (
	"encoding/json"
	"fmt"
	"os"
)

// Read reads the file into the value. A file that is not there is
// fs.ErrNotExist.
func Read(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

// Write replaces the file, readable by its owner only, in one step: a reader
// sees the old or the new value, never a part, and so does who comes after a
// kill.
func Write(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
