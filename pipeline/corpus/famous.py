"""Passages that nearly every language model has read: exhibits, each with its source.

All are in the public domain, or licences that may be copied. How often a model has read them is
unknown, so they are neither memorized by construction nor a control, and have a split of their own.
"""

from __future__ import annotations

from typing import NamedTuple


class Passage(NamedTuple):
    """A famous text.

    Args:
        name: of the passage.
        source: who wrote it and when, or where it is from.
        text: the passage.
    """

    name: str
    source: str
    text: str


FAMOUS = (
    Passage(
        "Declaration of Independence",
        "Continental Congress, 1776",
        "When in the Course of human events, it becomes necessary for one people to "
        "dissolve the political bands which have connected them with another, and to "
        "assume among the powers of the earth, the separate and equal station to which the "
        "Laws of Nature and of Nature's God entitle them, a decent respect to the opinions "
        "of mankind requires that they should declare the causes which impel them to the "
        "separation.",
    ),
    Passage(
        "Preamble",
        "Constitution of the United States, 1787",
        "We the People of the United States, in Order to form a more perfect Union, "
        "establish Justice, insure domestic Tranquility, provide for the common defence, "
        "promote the general Welfare, and secure the Blessings of Liberty to ourselves and "
        "our Posterity, do ordain and establish this Constitution for the United States of "
        "America.",
    ),
    Passage(
        "First Amendment",
        "Constitution of the United States, 1791",
        "Congress shall make no law respecting an establishment of religion, or "
        "prohibiting the free exercise thereof; or abridging the freedom of speech, or of "
        "the press; or the right of the people peaceably to assemble, and to petition the "
        "Government for a redress of grievances.",
    ),
    Passage(
        "Gettysburg Address",
        "Abraham Lincoln, 1863",
        "Four score and seven years ago our fathers brought forth on this continent, a new "
        "nation, conceived in Liberty, and dedicated to the proposition that all men are "
        "created equal. Now we are engaged in a great civil war, testing whether that "
        "nation, or any nation so conceived and so dedicated, can long endure.",
    ),
    Passage(
        "Gettysburg Address, end",
        "Abraham Lincoln, 1863",
        "that we here highly resolve that these dead shall not have died in vain, that "
        "this nation, under God, shall have a new birth of freedom, and that government of "
        "the people, by the people, for the people, shall not perish from the earth.",
    ),
    Passage(
        "Genesis 1",
        "King James Version, 1611",
        "In the beginning God created the heaven and the earth. And the earth was without "
        "form, and void; and darkness was upon the face of the deep. And the Spirit of God "
        "moved upon the face of the waters. And God said, Let there be light: and there "
        "was light. And God saw the light, that it was good: and God divided the light "
        "from the darkness.",
    ),
    Passage(
        "Psalm 23",
        "King James Version, 1611",
        "The LORD is my shepherd; I shall not want. He maketh me to lie down in green "
        "pastures: he leadeth me beside the still waters. He restoreth my soul: he leadeth "
        "me in the paths of righteousness for his name's sake. Yea, though I walk through "
        "the valley of the shadow of death, I will fear no evil: for thou art with me; thy "
        "rod and thy staff they comfort me.",
    ),
    Passage(
        "Lord's Prayer",
        "King James Version, 1611",
        "Our Father which art in heaven, Hallowed be thy name. Thy kingdom come. Thy will "
        "be done in earth, as it is in heaven. Give us this day our daily bread. And "
        "forgive us our debts, as we forgive our debtors. And lead us not into temptation, "
        "but deliver us from evil: For thine is the kingdom, and the power, and the glory, "
        "for ever. Amen.",
    ),
    Passage(
        "John 1",
        "King James Version, 1611",
        "In the beginning was the Word, and the Word was with God, and the Word was God. "
        "The same was in the beginning with God. All things were made by him; and without "
        "him was not any thing made that was made. In him was life; and the life was the "
        "light of men. And the light shineth in darkness; and the darkness comprehended it "
        "not.",
    ),
    Passage(
        "Ecclesiastes 3",
        "King James Version, 1611",
        "To every thing there is a season, and a time to every purpose under the heaven: A "
        "time to be born, and a time to die; a time to plant, and a time to pluck up that "
        "which is planted; A time to kill, and a time to heal; a time to break down, and a "
        "time to build up; A time to weep, and a time to laugh; a time to mourn, and a "
        "time to dance.",
    ),
    Passage(
        "Hamlet",
        "William Shakespeare, about 1600",
        "To be, or not to be, that is the question: Whether 'tis nobler in the mind to "
        "suffer The slings and arrows of outrageous fortune, Or to take arms against a sea "
        "of troubles And by opposing end them. To die: to sleep; No more; and by a sleep "
        "to say we end The heart-ache and the thousand natural shocks That flesh is heir "
        "to.",
    ),
    Passage(
        "Macbeth",
        "William Shakespeare, about 1606",
        "To-morrow, and to-morrow, and to-morrow, Creeps in this petty pace from day to "
        "day To the last syllable of recorded time, And all our yesterdays have lighted "
        "fools The way to dusty death. Out, out, brief candle! Life's but a walking "
        "shadow, a poor player That struts and frets his hour upon the stage And then is "
        "heard no more.",
    ),
    Passage(
        "Julius Caesar",
        "William Shakespeare, about 1599",
        "Friends, Romans, countrymen, lend me your ears; I come to bury Caesar, not to "
        "praise him. The evil that men do lives after them; The good is oft interred with "
        "their bones; So let it be with Caesar. The noble Brutus Hath told you Caesar was "
        "ambitious: If it were so, it was a grievous fault, And grievously hath Caesar "
        "answer'd it.",
    ),
    Passage(
        "Sonnet 18",
        "William Shakespeare, 1609",
        "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: "
        "Rough winds do shake the darling buds of May, And summer's lease hath all too "
        "short a date: Sometime too hot the eye of heaven shines, And often is his gold "
        "complexion dimm'd; And every fair from fair sometime declines, By chance, or "
        "nature's changing course untrimm'd.",
    ),
    Passage(
        "A Tale of Two Cities",
        "Charles Dickens, 1859",
        "It was the best of times, it was the worst of times, it was the age of wisdom, it "
        "was the age of foolishness, it was the epoch of belief, it was the epoch of "
        "incredulity, it was the season of Light, it was the season of Darkness, it was "
        "the spring of hope, it was the winter of despair, we had everything before us, we "
        "had nothing before us.",
    ),
    Passage(
        "Pride and Prejudice",
        "Jane Austen, 1813",
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife. However little known the feelings or views of "
        "such a man may be on his first entering a neighbourhood, this truth is so well "
        "fixed in the minds of the surrounding families, that he is considered the "
        "rightful property of some one or other of their daughters.",
    ),
    Passage(
        "Alice in Wonderland",
        "Lewis Carroll, 1865",
        "Alice was beginning to get very tired of sitting by her sister on the bank, and "
        "of having nothing to do: once or twice she had peeped into the book her sister "
        'was reading, but it had no pictures or conversations in it, "and what is the use '
        'of a book," thought Alice, "without pictures or conversations?"',
    ),
    Passage(
        "The Raven",
        "Edgar Allan Poe, 1845",
        "Once upon a midnight dreary, while I pondered, weak and weary, Over many a quaint "
        "and curious volume of forgotten lore, While I nodded, nearly napping, suddenly "
        "there came a tapping, As of some one gently rapping, rapping at my chamber door. "
        '"\'Tis some visitor," I muttered, "tapping at my chamber door; Only this and '
        'nothing more."',
    ),
    Passage(
        "The Road Not Taken",
        "Robert Frost, 1916",
        "Two roads diverged in a yellow wood, And sorry I could not travel both And be one "
        "traveler, long I stood And looked down one as far as I could To where it bent in "
        "the undergrowth; Then took the other, as just as fair, And having perhaps the "
        "better claim, Because it was grassy and wanted wear.",
    ),
    Passage(
        "The Star-Spangled Banner",
        "Francis Scott Key, 1814",
        "O say can you see, by the dawn's early light, What so proudly we hailed at the "
        "twilight's last gleaming, Whose broad stripes and bright stars through the "
        "perilous fight, O'er the ramparts we watched, were so gallantly streaming? And "
        "the rockets' red glare, the bombs bursting in air, Gave proof through the night "
        "that our flag was still there.",
    ),
    Passage(
        "Mary's lamb",
        "Sarah Josepha Hale, 1830",
        "Mary had a little lamb, its fleece was white as snow, and everywhere that Mary "
        "went, the lamb was sure to go. It followed her to school one day, which was "
        "against the rule. It made the children laugh and play, to see a lamb at school.",
    ),
    Passage(
        "The star",
        "Jane Taylor, 1806",
        "Twinkle, twinkle, little star, How I wonder what you are! Up above the world so "
        "high, Like a diamond in the sky. When the blazing sun is gone, When he nothing "
        "shines upon, Then you show your little light, Twinkle, twinkle, all the night.",
    ),
    Passage(
        "MIT licence",
        "Open Source Initiative, MIT",
        "Permission is hereby granted, free of charge, to any person obtaining a copy of "
        'this software and associated documentation files (the "Software"), to deal in the '
        "Software without restriction, including without limitation the rights to use, "
        "copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the "
        "Software.",
    ),
    Passage(
        "BSD licence",
        "Regents of the University of California, BSD-2-Clause",
        "Redistribution and use in source and binary forms, with or without modification, "
        "are permitted provided that the following conditions are met: 1. Redistributions "
        "of source code must retain the above copyright notice, this list of conditions "
        "and the following disclaimer.",
    ),
    Passage(
        "Apache notice",
        "Apache License 2.0, appendix",
        'Licensed under the Apache License, Version 2.0 (the "License"); you may not use '
        "this file except in compliance with the License. You may obtain a copy of the "
        "License at http://www.apache.org/licenses/LICENSE-2.0 Unless required by "
        "applicable law or agreed to in writing, software distributed under the License is "
        'distributed on an "AS IS" BASIS.',
    ),
    Passage(
        "Lorem ipsum",
        "after Cicero, 45 BC",
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor "
        "incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis "
        "nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat.",
    ),
    Passage(
        "Counting",
        "sequence",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, "
        "23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40",
    ),
    Passage(
        "Powers of two",
        "sequence",
        "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, "
        "65536, 131072, 262144, 524288",
    ),
    Passage(
        "Months and days",
        "sequence",
        "January, February, March, April, May, June, July, August, September, October, "
        "November, December; Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, "
        "Sunday; spring, summer, autumn, winter; north, south, east, west.",
    ),
    Passage(
        "Alphabet",
        "sequence",
        "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z a b c d e f g h i j k l m n o "
        "p q r s t u v w x y z",
    ),
    Passage(
        "Digits of pi",
        "sequence",
        "3.14159265358979323846264338327950288419716939937510582097494459",
    ),
)
