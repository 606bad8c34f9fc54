// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/peterh/liner"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

const (
	prompt     = "govmm# "
	promptMore = "> " // when a command goes on in the next line
)

// lines reads commands from the terminal. One editor lasts as long as the shell:
// it may have read more than a line, and what was typed ahead must not be lost.
type lines struct {
	editor *liner.State
	// The terminal's modes while a command runs and while a line is edited.
	cooked, editing liner.ModeApplier
}

func newLines() (*lines, error) {
	cooked, err := liner.TerminalMode()
	if err != nil {
		return nil, err
	}
	l := &lines{editor: liner.NewLiner(), cooked: cooked}
	l.editor.SetCtrlCAborts(true)
	l.editor.SetWordCompleter(complete)
	l.editing, err = liner.TerminalMode()
	return l, err
}

// interact reads and runs commands until the end of the input or "exit".
func interact(runner *interp.Runner) int {
	ignoreKeyboardSignals()
	in, err := newLines()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: the terminal: %v\n", err)
		return exitUsage
	}
	defer in.editor.Close()
	status := 0
	for !runner.Exited() {
		file, err := in.readCommand()
		if errors.Is(err, io.EOF) {
			fmt.Println()
			return status
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "sh: %v\n", err)
			status = exitUsage
			continue
		}
		for _, statement := range file.Stmts {
			status = exitStatus(runner.Run(context.Background(), statement))
			if runner.Exited() {
				break
			}
		}
	}
	return status
}

// ignoreKeyboardSignals leaves Ctrl-C and Ctrl-\ to the command that runs. They
// are caught, not ignored: an ignored signal would stay ignored in the commands.
func ignoreKeyboardSignals() {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGQUIT, syscall.SIGTSTP)
	go func() {
		for range caught {
		}
	}()
}

// readCommand reads lines until they make a complete command. The terminal is
// in the line editor's mode only meanwhile.
func (l *lines) readCommand() (*syntax.File, error) {
	if err := l.editing.ApplyMode(); err != nil {
		return nil, err
	}
	defer l.cooked.ApplyMode()
	text, ask := "", prompt
	for {
		line, err := l.editor.Prompt(ask)
		if errors.Is(err, liner.ErrPromptAborted) {
			text, ask = "", prompt
			continue
		}
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(line) != "" {
			l.editor.AppendHistory(line)
		}
		text += line + "\n"
		file, err := syntax.NewParser().Parse(strings.NewReader(text), "")
		if !syntax.IsIncomplete(err) {
			return file, err
		}
		ask = promptMore
	}
}

// complete offers commands for the first word of a line, and files for others.
func complete(line string, pos int) (head string, completions []string, tail string) {
	runes := []rune(line)
	head, tail = string(runes[:pos]), string(runes[pos:])
	start := strings.LastIndexAny(head, " \t|;&<>=") + 1
	word := head[start:]
	head = head[:start]
	if strings.TrimSpace(head) == "" && !strings.Contains(word, "/") {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			for _, file := range matches(filepath.Join(dir, word)) {
				completions = append(completions, filepath.Base(file)+" ")
			}
		}
	} else {
		for _, file := range matches(word) {
			completions = append(completions, completedFile(file))
		}
	}
	slices.Sort(completions)
	return head, slices.Compact(completions), tail
}

func matches(prefix string) []string {
	files, err := filepath.Glob(prefix + "*")
	if err != nil {
		return nil // the word is a pattern of the user's own
	}
	return files
}

// completedFile appends what is typed next: a slash, or a space.
func completedFile(file string) string {
	if stat, err := os.Stat(file); err == nil && stat.IsDir() {
		return file + "/"
	}
	return file + " "
}
