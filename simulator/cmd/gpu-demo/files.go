// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// find prints the path of every file that is not a directory, with the numbers of character devices. A missing
// directory counts as empty.
func find(dirs []string, out io.Writer) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // missing, or deleted meanwhile
			}
			if err != nil || entry.IsDir() {
				return err
			}
			_, err = fmt.Fprintln(out, path+numbers(entry))
			return err
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
	}
	return nil
}

// numbers is " MAJOR:MINOR" for a character device, otherwise "".
func numbers(entry fs.DirEntry) string {
	if entry.Type()&fs.ModeCharDevice == 0 {
		return ""
	}
	info, err := entry.Info()
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf(" %d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
}

func cat(files []string, out io.Writer) error {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

func remove(files []string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove %s: %w", file, err)
		}
	}
	return nil
}
