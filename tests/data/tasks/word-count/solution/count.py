from collections import Counter
from pathlib import Path

counts = Counter(Path("words.txt").read_text().split())
ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
Path("counts.txt").write_text("".join(f"{word} {number}\n" for word, number in ordered))
