// SPDX-License-Identifier: Apache-2.0

// Package jsonfile stores a value in a file.
package jsonfile

import (
	"encoding/json"
	"fmt"
	"os"
)

// Read decodes the file into value. The error is fs.ErrNotExist if there is no file.
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

// Write replaces the file atomically. Only its owner can read it. After a kill, the file has the old or the new value,
// never a part.
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
