// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/govmm/govmm/internal/result"
)

// record is the result of a run as a JSON file. A nil record writes nothing.
type record struct {
	path  string
	file  *os.File // what is written: a temporary file, or path itself if it is a device or pipe
	data  recordData
	temps bool
}

// recordData is the content of the file.
type recordData struct {
	result.Result
	Name    string    `json:"name,omitempty"`
	Kernel  string    `json:"kernel,omitempty"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"` // the whole run of govmm
}

// openRecord makes sure, before the VM runs, that the file can be written. It
// appears at the end of the run, whole.
func openRecord(path string) (*record, error) {
	if path == "" {
		return nil, nil
	}
	r := &record{path: path, data: recordData{Version: version(), Started: time.Now()}}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, usagef("--result %s is a folder: name a file", path)
	case err == nil && !info.Mode().IsRegular():
		r.file, err = os.OpenFile(path, os.O_WRONLY, 0)
	default:
		r.temps = true
		r.file, err = os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	}
	if err != nil {
		return nil, result.Errorf(result.Host, "--result: %w: name a file that can be written", err)
	}
	return r, nil
}

// name notes which VM it is.
func (r *record) name(name, kernel string) {
	if r != nil {
		r.data.Name, r.data.Kernel = name, kernel
	}
}

// write writes the result. If it can't, the result it returns says so, unless
// the run itself has something worse to tell.
func (r *record) write(res result.Result) result.Result {
	if r == nil {
		return res
	}
	r.data.Result = res
	r.data.Seconds = time.Since(r.data.Started).Seconds()
	if err := r.save(); err != nil {
		if res.Code == 0 {
			return result.Of(result.Host, "--result: %v: free space, or name another file", err)
		}
		res.Detail += "; the result's file was not written: " + err.Error()
	}
	return res
}

func (r *record) save() error {
	text, err := json.MarshalIndent(r.data, "", "  ")
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(text, '\n'))
	if err := errors.Join(err, r.file.Close()); err != nil {
		return errors.Join(err, r.discard())
	}
	if !r.temps {
		return nil
	}
	const mode = 0o644 // as for any file; CreateTemp's is 0600
	if err := os.Chmod(r.file.Name(), mode); err != nil {
		return errors.Join(err, r.discard())
	}
	if err := os.Rename(r.file.Name(), r.path); err != nil {
		return errors.Join(err, r.discard())
	}
	return nil
}

// discard removes the temporary file.
func (r *record) discard() error {
	if !r.temps {
		return nil
	}
	if err := os.Remove(r.file.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
