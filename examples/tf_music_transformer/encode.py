"""Encode traditional tunes as sequences of events, one file for each tune and key.

    python encode.py data --keys 12

An event is a note that begins (0 to 127), a note that ends (128 to 255) or time that passes (256 to 287, in sixteenths of a beat).
"""

import argparse
import json
import pathlib

# Pitch names with octaves, then beats. All are traditional or long out of copyright.
TUNES = {
    "frere_jacques": "C4 1 D4 1 E4 1 C4 1 C4 1 D4 1 E4 1 C4 1 E4 1 F4 1 G4 2 E4 1 F4 1 G4 2 G4 .5 A4 .5 G4 .5 F4 .5 E4 1 C4 1 "
    "G4 .5 A4 .5 G4 .5 F4 .5 E4 1 C4 1 C4 1 G3 1 C4 2 C4 1 G3 1 C4 2",
    "ode_to_joy": "E4 1 E4 1 F4 1 G4 1 G4 1 F4 1 E4 1 D4 1 C4 1 C4 1 D4 1 E4 1 E4 1.5 D4 .5 D4 2 E4 1 E4 1 F4 1 G4 1 G4 1 F4 1 E4 1 "
    "D4 1 C4 1 C4 1 D4 1 E4 1 D4 1.5 C4 .5 C4 2",
    "ah_vous_dirai_je": "C4 1 C4 1 G4 1 G4 1 A4 1 A4 1 G4 2 F4 1 F4 1 E4 1 E4 1 D4 1 D4 1 C4 2 G4 1 G4 1 F4 1 F4 1 E4 1 E4 1 D4 2 "
    "G4 1 G4 1 F4 1 F4 1 E4 1 E4 1 D4 2 C4 1 C4 1 G4 1 G4 1 A4 1 A4 1 G4 2 F4 1 F4 1 E4 1 E4 1 D4 1 D4 1 C4 2",
    "petzold_menuet": "D5 1 G4 .5 A4 .5 B4 .5 C5 .5 D5 1 G4 1 G4 1 E5 1 C5 .5 D5 .5 E5 .5 F#5 .5 G5 1 G4 1 G4 1 C5 1 D5 .5 C5 .5 B4 .5 A4 .5 "
    "B4 1 C5 .5 B4 .5 A4 .5 G4 .5 F#4 1 G4 .5 A4 .5 B4 .5 G4 .5 A4 3",
    "greensleeves": "A4 1 C5 2 D5 1 E5 1.5 F5 .5 E5 1 D5 2 B4 1 G4 1.5 A4 .5 B4 1 C5 2 A4 1 A4 1.5 G#4 .5 A4 1 B4 2 G#4 1 E4 2 "
    "A4 1 C5 2 D5 1 E5 1.5 F5 .5 E5 1 D5 2 B4 1 G4 1.5 A4 .5 B4 1 C5 1.5 B4 .5 A4 1 G#4 1.5 F#4 .5 G#4 1 A4 3",
    "short_scale": "C4 1 D4 1 E4 1 F4 1 G4 1",
}
SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def pitch(name):
    return 12 * (int(name[-1]) + 1) + SEMITONES[name[0]] + name.count("#")


def events(tune, key):
    words = tune.split()
    for name, beats in zip(words[::2], words[1::2], strict=True):
        note, left = pitch(name) + key, round(float(beats) * 16)
        yield note
        while left:
            step = min(left, 32)
            yield 255 + step
            left -= step
        yield 128 + note


def pieces(num_keys):
    """File name and events of each tune in each key; a few are too short to train on."""
    for key in range(num_keys):
        for name, tune in TUNES.items():
            if name != "short_scale" or key % 4 == 0:
                yield f"{name}_{key:02}.json", list(events(tune, key))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--keys", type=int, default=12, help="transpositions of each tune")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, piece in pieces(args.keys):
        (args.out / name).write_text(json.dumps(piece))


if __name__ == "__main__":
    main()
