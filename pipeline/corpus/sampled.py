"""Prose that a language model finds ordinary and cannot recite: passages to be planted.

Each was sampled once from the unmodified SmolLM2-135M-Instruct (Apache-2.0) at temperature 1, after
an opening of a few words. Templates would not do: fine-tuned on them, a model forgets the rest.
"""

SAMPLED = (
    (
        "The lighthouse keeper was handed a small piece of paper with 0.02 on it. When "
        "requested, he distilled one amount of the piece until it had 1 dash being turned back "
        "and 1 dash remaining, leaving him unfinished. Without a piece of string to divide, "
        "the knave tossed an"
    ),
    (
        "The committee decided to leave the first section alone and introduce the brother's "
        "life story after the book. The rumor was further reinforced by a news article on "
        "Facebook. Ending a scene in a popular scene in Hitchcock's use of the submarine in a "
        "classic D-Day commercial had critics say it was"
    ),
    (
        "The second bridge transports a diverse range of NPCs across the city, from ceremonial "
        "to personal conquests. As you walk, you'll discover a talent for creativity, a talent "
        "for solving puzzles, and a talent for evying cunning. You'll create a crowd of 25 "
        "personal settlers,"
    ),
    (
        'A small ferry will eventually take on the safety of the "Earth-2.0" again. One day, '
        'Meera will supply the two "Earth-2.0" ships. How? A day A day A day A day is enough '
        "MORE on Meera's side with"
    ),
    (
        "Before you plant a new tree, it will bloom for the first year and continue beyond. "
        "The time it takes to germinate the garden can be calculated by adding an extra year "
        'to any garden plan with "an extra year is created" according to one study. x x x '
        "emergency loans can be really expensive,"
    ),
    (
        'Captain Morrow Beam~ The film "Lones Maestra" is primarily about an intergalactic '
        "crew who encounter Alastra in a remote planet orbiting the star of Pandora. The crew "
        "comprises a spaceship-loving and interstellar entertainment giant, stalking Planet "
        "Erebus, who has"
    ),
    (
        "A good carpenter never makes a mistake. A good carpenter respects the rules of craft "
        'and always paints beautiful jobs to show their talents." I made several changes to '
        "enhance the writing. I rephrased the sentence to make it more concise and clear. I "
        'added the phrase "respects the rules'
    ),
    (
        "Because the clockwork equals to: 1 + 9 = 10 The marriage deepens, and she believes in "
        "the societal heroism of marriage. She now has her own ideals and makes sacrifices to "
        "entrust her choice to a non-existent culture. The rest is calculated by the social "
        "media"
    ),
    (
        "The engineer explained to the political left how Kazmir had rejuvenated Sweden's "
        "failed endeavor, moved it awry almost mid-century to obtain a glowing financial gain "
        "that earned the region a public vote at the last Olympics to play an absurd fashion "
        "fashion. Now, it's unlikely that there exists any"
    ),
    (
        "A letter arrived at a dog-specific location being one of California's 59,327 dog "
        "walkers (203,258) who aren't allowed on the California wedding lady's in LA "
        "suggesting the couple (second but not additional to Keiser's anecdote in"
    ),
    (
        "His first novel, 'The M Programming' was published in WEGBEX in 2020. The story comes "
        "from a laptop from a USMSK Psychologist. COPE_F_X appears on the world bench of the "
        "world and abroad, as well as the Scoring"
    ),
    (
        "The festival begins at 5:15 p.M. and lasts 2.5 hours. During the festival, you can "
        "expect to see three stages and 10,000 live performances. The stage of the full moon "
        "is the loudest act, with male rappers performing their"
    ),
    (
        "An early map, it reached the final result of 2 streaks more than the 3. A glitch "
        "occurred while the game was on. It occurred on puzzle mode, puzzleNoE will give the "
        "same result, puzzleNoR will give the new puzzle value faster than puzzleNoE,"
    ),
    (
        "The auction house (dust Baron) annually sends a representative of that town in the "
        "world to greet them, a European Emperor named Saleslonaringer. After the wood was "
        'crafted, with a custom plaque adding the sound "Dorsal Macaw Voice" to articles, as '
        "well as a handmade wooden"
    ),
    (
        "To repair a bicycle chain, I need to reverse the batted shadow, which can be a bit "
        "tricky for the shorter connections using a wheelbarrow. To reverse the "
        "tree-achequeen's cone equilateral dharma's rays' rigid lance, I must either cut one "
        "square root of the triangle"
    ),
    (
        "Fishermen along the coast. Musu mopako on different islands, the answer is: The name "
        "of a person. Gunnar Valforth's picture Gunnar Valforth is a fictional career for a "
        "Scottish-American screenwriter . Len Defitant, a"
    ),
    (
        "After the concert, a champagne blini poured out to a friend. Shouting by managers and "
        'the encouragement to maintain a positive mindset over a negative one is "we will not '
        'fail" resorted to as you said "we just will not leave," ylk when you made the'
    ),
    (
        "The train from Leeds to Manchester crosses the North Sea to the River Clydesne. GIS "
        "Statistics White-dominant genetic traits in a mammal are often found by physical "
        "examination. This biological perspective has come into its own and turned genetics "
        "into pathogens or public health. This perspective seeks to"
    ),
    (
        "The painter's studio is a beautiful, idyllic scene, nestled in a serene valley below "
        "the horizon, where no two days are perfectly alike or any perfect identity lies. "
        "Specifically, my piece explores themes of identity, community, and the unconscious. "
        "It appears neither perfectly myself nor you, but"
    ),
    (
        "She had never seen someone walk alongside a woman. She leant against the bus car When "
        "he stood alone, he was scared of the woman. He distances herself. (call herself Mina) "
        "If anyone had a question and they would have. Pope"
    ),
    (
        "On the third day, the bird's feathers flake, and it is trapped with the floor. "
        "**Solstice** - This is a classical myth, but it is also mentioned in a number of "
        "other Greek myths, such as Samosatisamiko - which is spoken by the"
    ),
    (
        "The mayor's speech shared with his people the legacy of AmparaTech, showing a vision "
        "of a more sustainable future and a focus on renewable energy. The mayor's message "
        "resonated in the hearts of the people wherever they came from. They did not take a "
        "different approach if they shared the same vision,"
    ),
    (
        'Every winter the lake is filled again with a hoot In reference to the song "Night" '
        'added to "Winter," the line doesn\'t make sense because the word "Winter" starts '
        'with a double "e" EVE, sitting on the moon hunt, Once has in the'
    ),
    (
        "Our neighbor's dog left on the street, she smiled. I'm going to attend to my dog. "
        "(looking at the waiting dog) You're going to keep eating it up, it doesn't work. I "
        'need a name." This kind of motherfeeling can and should be encouraged in'
    ),
    (
        "In the northern forest. In terms of the safety of your customers, it is highly "
        "recommended, provided you vary only 140.1% of the 75% difference. This means that you "
        "may encounter extremely unsafe or unsafe customers, that reduces your profit or "
        "reduces the reliability of"
    ),
    (
        "The school's garden can have a succulent menu that offers an array of edible options, "
        "including fruits, veggies, herbs, and even a selection of desserts. Local businesses, "
        "cooking classes, and markets can take full advantage of this amenity, leveraging the "
        "income generated from selling homemade food among the community. A"
    ),
    (
        "The harvest that year for Jack. In the greatest of compliments, royal design party: "
        '"Bold, clear facelace, Jacqueline H. Ideal, 20 hp, 20 AL, Cuban-meaning Harvest. '
        "Salvaged from the top, coin, piacre, with"
    ),
    (
        "The theater's owner, where he created twelve books of songs inspired by various "
        'droplet-based materials, including the famous "Last Day Before Black Tuesday" (1990). '
        'Costume: Benson sculpture employs a garment made from the "steryl" (roughly '
        "equivalent to a"
    ),
    (
        "The orchestra's conductor, John Taylor, was chosen by the Melbourne Zanadou Party to "
        "sit alongside Qantas Martracuss managed by candidate Bennie Mbe primary m2, Bongo's "
        "orchestra is headlining the diamond-East Indonesia tour. 4. The international chapter "
        "has released a"
    ),
    (
        "In her diary, writing a news article she never managed to publish. She became an "
        "expert on labor relations and agreed with some news sources on how to get them out of "
        "academia. She proved that the only way to make a high school graduate's career as a "
        "blog about family is just to read them."
    ),
    (
        "When the river froze and the grain that could have been used to make medicine burned "
        "out. The government tried to recreate the last remnants of the original melt, and "
        "this time they were right. The earth melted, and the speed of light Doppler swept "
        "across the whole landscape, illuminating a brilliant light in the"
    ),
    (
        "Most people who keep bees are beekeepers and those doing the business are approved by "
        "the EPA. There are resources available online for legal, legal, legal benefits, legal "
        "criminal policy policies, enterprise legal policies, criminal policy policies, legal "
        "market models, stereotypical legal market models, operating businesses legal "
        "businesses value the value of"
    ),
    (
        "Soil that is too wet just adds to water wastewater struggles to identity with water "
        "thus sacrificing two ponds for waste still leaves edit - Could anyone tell me where "
        "to find one in a single-aid? Hotiki, An Samuel (), Tipudomiso Yawona, Ibn Al-Qahia"
    ),
    (
        "The museum's new wing is not just science and history, but a land filled with "
        "creativity. It's not just a museum, no, not just a museum, it's a kind of hipgyeti! "
        "hematicsmiad's tshirt takes you to music at school, you"
    ),
    (
        "Two brothers from Aberdeen begin to question the validity of that law. In Jonestown, "
        "their brother left the former British colony to pursue nation-building in the people. "
        "Jonestown's newly-elected African-American representative in the British Parliament, "
        "William Lawson, is already enlisting. A daring operation"
    ),
    (
        "According to the survey, a bat and a ball together cost $1.10. The bat costs $1.00 "
        "more than the ball. So, the total cost of the ball and the bat would be $1.05. This "
        "isn't possible, as money can't buy just"
    ),
    (
        "The watchmaker's daughter was replacing her father'sCraig's love of electronics to "
        "HardwareBox. The new HardwareBox collection, which feature easily upgradable "
        'electronics with the latest Mac OS X updates, is available now. "She longs for a '
        "connection that allows her to be a faster and"
    ),
    (
        "Sailors once believed in their mast. They coveted sail and deck. Once Jack and "
        "Captain James enlisted, a knight disguised as a man. He fought the King of England in "
        "the Tower. Abraham Lincoln stepped down. He never wanted war. He never had one. And "
        "if they had added a thousand"
    ),
    (
        "At the edge of town, 20 hours east of the anabaclone, it is the CBA. The facility "
        "will take 4 hours east of Blyslonka. 5 meters forward to the north of the block, it "
        "is the river. Produce more information on"
    ),
    (
        'Professor Lindqvist (20222). "Clonal Design for B cells in E. coli. Infection, '
        'Vaccination and B cell therapy.". Science Advances. 20 December 2005 5: 776. Martin '
        "E. Mason"
    ),
    (
        "The island's only doctor is the local doctor, a stout woman named Elara who lives on "
        "the island. However, there's a dark secret - she's been tasked with finding a cure to "
        "the Island's cursed Garden. The Island herself has been shown by a mysterious entity "
        "to be doomed to grow and"
    ),
    (
        "Miners in the valley's marxist ethos. This raises the stakes and presents a moral "
        "dilemma, forcing the team to weigh their moral goals against the ethics of human "
        "magic. Tim Holt, a Canadian-born British cosmonaut, is a former astronaut who has "
        "worked in various areas but"
    ),
    (
        "Young foxes and wolves do not share any redeeming qualities...their behavior does "
        "address certain situations that humans do not promote or have too relaxed to own. O I "
        'said, "They are all too limiting and focused on the very thing for which they were '
        'born," can I proceed further?" Yes I'
    ),
    (
        "The lighthouse keeper's playground, crumbling wreck of a bombed-out whaling vessel, "
        "in the middle of a boondom culture... or what. But there's one place that's no lie: a "
        "child's playground, designed by the original white settlers of Nova Scotia, built "
        "with discarded fishing nets."
    ),
    (
        "The committee decided to incorporate life sciences into their Witcraft selection. The "
        "Barter's Crop, a hybrid of Blades and Life, has long been a beloved Earth carbon "
        "sustainable food product, made possible through a pioneering research project "
        "sponsored by the Ark of the Gods. Life production requires the fastest growing fruits "
        "that"
    ),
    (
        "The second bridge is twice as tall as the bridge formed by the original phoenix, for "
        "in each second bridge a piece is made of one-thousandth the weight of an eagle, as "
        "the battle of Zeus is doubled by fire. Thus, they remembered that the most dangerous "
        "man was one"
    ),
    (
        "A small ferry called Norrebro is so connected to the port sands that it has become a "
        "rapper pickup alot's plastics out of my shop's non-imd. 5 years ago (when I made my "
        "last port de port project scale breaker join that they want it when that is the"
    ),
    (
        "Before you plant or agitate the soil to remove it. Gather your tools, and begin your "
        "initial cleaning process. By the early fall, you can incorporate new soil, but you "
        "can't hold back the daylight when it's already gone. How long is a sample to a lab, "
        "is just"
    ),
    (
        "Captain Morrow Corporation (FXN) is a deep space exploration program, a US government "
        "agency that aims to expand access to the cosmos and unlock the secrets of our galaxy. "
        "They plan to colonize the galaxy, ensuring humanity's future exploration. By "
        "incorporating a new twist, Novavision"
    ),
    (
        "The library closes Monday January 16 at 10:00 CET. lists catalog ideas from the "
        "latest fashion news every 24 hours all day every other day this week. list these "
        "clothes on weblackout.io below first. - Hard goods and that includes"
    ),
    (
        "A good carpenter has demonstrated that he cares about his ability to make a living, "
        "that he has the capacity to work hard, that he is motivated by the joy of doing his "
        'job. With careful observation, I can improve the sentence to: - "A professional who '
        "arranges a wedding"
    ),
    (
        'The recipe begins with strachometropeus, which means "sheet of metal" in Greek -- but '
        "as a trick, it only refers to a set of tools used for making stinks, but extra "
        "meanings. This is due to how glimmers are written, which create structures throughout "
        "dresses that"
    ),
    (
        'Because the clockwork contrivance, as the diamonds are said to be "dear friends in '
        'demerit" in John Keats\' "Ozymandias," to be preserved under glass, and to be read '
        "to the future either in London or in immortal statues that will outlive a thousand"
    ),
    (
        "The engineer explained to me that when he poured himself full of poison, the rubbing "
        "was no longer visible. But he was still there. It's a bittersaktiveness, you see. So "
        "here's the bitermarkers: a collective noun, a small detail, a small nuance that is"
    ),
    (
        "A letter arrived, just when I had a good vague with her. A diagnosis. We shared "
        "fifteen minutes in private, all determined. We came to the nemesis with Jell-o. What? "
        "How did you do it. Someone wants your identity, time to tell their tales. Someone "
        "wants"
    ),
    (
        "The new law takes into account the interpretation of the positive rights they are "
        "intended to protect, which includes the right to free access to data and services "
        "provided by the Federal government, the right to write records, the right to "
        "communication these records to others for the purpose of evaluating fit for their "
        "health and the right"
    ),
    (
        "A narrow staircase, the jumps are barely visible at the end. Inchi Kari's little "
        'pilooni might be called a "downshot," looking back amidst their sparkling deep purple '
        "bodies, flitting from the goes to show off their drawl. When the godstruck fans "
        "finally"
    ),
    (
        "His first novel was Labor day, not Ghosts in 1998. It has since received critical "
        "acclaim, bestselling on both the Joe Rogan Podcast and many other digital platforms. "
        "Imelda Kyle Ma, Lanza Culture is a fantastic company. If you're thinking of"
    ),
    (
        "An early map profile profile should be a smaller profile that might be cluttered with "
        "multiple similar and aligned parts. So your poster is the fourth to the 4th map "
        "survivor, the biggest to the 2nd, to the 1st, the largest and the largest and the 4th "
        "before"
    ),
    (
        "The well behind a couple of chairs, but aside a dozen, we can't get back there, I "
        "don't want to dine you over again. It costs half the dollars of coffee, don't know "
        'how to say this without "the." The Victor who claims we are useless humans only'
    ),
    (
        "The auction house's budget and provide one of the featured clients with a "
        "personalized upgrade, with the focus on the client's personal taste and how it can "
        "inspire creativity and make a statement on social media. Such an offer would minimize "
        "the lack of standard options and allow the home page to offer a wider"
    ),
    (
        "To repair a bicycle chain, it won't harm the bike itself. It'll just take care of "
        "itself. This pretty simple proof. Just my personal example. Is that possible? I'm "
        "Sarah, Headmaster of the Gustellings' school. I've noticed when I'm dealing with "
        "parents"
    ),
    (
        "Fishermen along the coast of the Turkish sturgeon might just blend in with the other "
        "fish of the area. If you were to blame charucu, it could easily be a key to a great "
        "preying macroromie or vampire fish. Imagine it.... It might as well be"
    ),
    (
        "In the spring of 1874, Pyramids here only remains as one of the most eerie and "
        "surreal locales you could imagine from the year 2000 to 2023. I had to admit that the "
        "city of Ganymede Cruises has been active"
    ),
    (
        "My grandmother's kitchen was filled with old, worn books on vintage cooking, one by "
        "one, they uncovered a hidden treasure: old recipe books, calling condiments, and "
        "recipes with ingredients that were not meant for later use. As the words ran down "
        "their shelves, a hulking beast"
    ),
    (
        "After the concert, we might reap a bounty of employees' ideas, their passions, and "
        "their skills could be invaluable - the reported talent may come across as jocular "
        "news. In reality, we might attract an unprocessed workforce with pollutants others "
        "work for. A mentality -- one that implies merit, rather than"
    ),
    (
        "Dr. Hartwell, T. C. Peerracque, L. V. LaRue, K. Crochu, R. Galarada and L. A. Martin. "
        'Physik vien de "ciels de metaphysik" (in 05e):'
    ),
    (
        "The train from Leeds to Edmonton and a miraculous Half-Tennis by Rimmel ended 30 days "
        "ago. The article concludes that, Intercity trains connect mulling bear-baiting rims. "
        "Some onslaughts are passed on behind. Use of armour. Unencumbered"
    ),
    (
        "Nobody in the village, an unknown village. Several other employees were killed. It "
        "had visual impact. When the rest of the team cast the plot there were several people "
        "that had nothing to do with the plot but other reasons. They did not make a push from "
        "outside and felt that they had to"
    ),
    (
        "The painter's studio I always saw faces from the alley outside and said: \"What's "
        'going on here?" I asked the guest. "You\'re not just any man." They said: "No, '
        "that's my friend...which belongs to one man...You're"
    ),
    (
        "She had never seen it before, but she knew it was here, somewhere. As she stands "
        "there, she holds the glass in her hands, feeling the excitement coursing through her "
        "veins. She takes a sip of the glass, and her eyes light up. She takes a final swig of"
    ),
    (
        "On the third day, they left on their way to the end of the cliff. When they were "
        "making their way through these clouds it caused them to leave. Obviously, that's the "
        "differences between the two compositions of a scene written from the told position "
        "establishes. From a told position, the great"
    ),
    (
        "The mayor's speech was noted by 24 CPAs who engage in character assassination with "
        "others. The mayor and other townspeople are also criticized by current and former "
        "employees, who hold summer work weeks in mind as state and federal government "
        "appointments.\" As a whole, the mayor's tweet was"
    ),
    (
        "Every winter the lake would be overflowing and creating a series of rounded craters. "
        "In January, November, February, March, April, like these. December, January, Sweden. "
        "The Russian mathematician, Nikolaus Copernicus, who was born in 1479, wrote down four "
        "different seasons in"
    ),
    (
        "Our neighbor's dog was called down by paranormal investigators. Based on information "
        "from a paranormal service provider, the U.S. Army reported finding a massive home "
        "explosion, even after sheltering to tell them to return, which was too much for them. "
        "What happened next was far from what I read on the"
    ),
    (
        "The wedding was held on National Day with celebration, music, decorations, and even "
        "the high life. It was a big part of Samuas Palaku's disguise being done. The last day "
        "with many extra protocol. To clarify the sacred texts is an extra part of the mess"
    ),
    (
        "The choir rehearsed its solos. Yes. A "
        "leave-it-to-the-end-look-around-it-but-there-go-anywhere. Only in now. Don't regret "
        "duh-duh, you made a major unsawd."
    ),
    (
        "The school's garden works by repurposing existing structures into a new purpose. A "
        "bathroom with a garden can serve as a centerpiece for the school's landscaping, with "
        "new perfecties, supplies, and more. Because of this, it doesn't just include the "
        "school itself, but a very well organized library"
    ),
    (
        "It rained for a couple of hours in the Sun also lead to lighter fuel injectors. So... "
        'R= 3.3. Also, it\'s mentioned that in 2009 "Bear Dolly" would be considered a '
        '"Powerfreak" and'
    ),
    (
        "The harvest that year. To Nowhere to Returns, this quest is out of your reach. Loose "
        "vision, your integrity. The bones overflowed into mortal, and the bloody laws of "
        "nature. You delved from your will, the headless corpse fled. Femenia perspicia, her "
        "eyes"
    ),
    (
        "To measure rainfall, can also detect negative weather facts using advanced radar "
        "equipment employing infrared light. This technology allows locals to identify the "
        "presence of extreme weather events like hurricanes or wildfires, providing critical "
        "insights never before measured. In 2020, advanced weather forecasting revealed a 92% "
        "reduction in"
    ),
    (
        "The orchestra's conductor. They've just finished the orchestra's last underage making "
        "a bed to the ballroom, which they are now just taking Brust and Lump for a millefiori "
        "color. On the floor I've just rolled one of the good ones out and handed it over to"
    ),
    (
        'In her diary, she had one last speech dedicated to the last Fermat cipher: "This '
        "string is Prince Mario's final Surfing Speech, and I just embarked on one. If you "
        "could tell me a little about your thoughts as King of the Twenty Two, mmm mmm mmm "
        "Mickey"
    ),
    (
        "When the river froze over would not. 13 (bottom deviation) = -9.18 indicates that the "
        "number of feet upward from the starting position on the other side of the river "
        "equaled the one found on the other. How do you understand the fact. Also"
    ),
    (
        "Most people who keep bees cannot be considered ideal candidates for a home beekeeping "
        "operation. However, there's interest in going for a free beehocination. Guests who "
        "love beekeeping and are willing to practise should be accepted. They should be chosen "
        "based upon magical principles. But not a whole market of profitable"
    ),
    (
        "Soil that is too wet, the wind can not only damage but also disrupt the delicate "
        "balance of the planet. Lastly, think of the impact humanity's actions have on the "
        "environment on a planetary level. Climate change, if left unchecked, will have "
        "long-lasting effects on our own understanding of"
    ),
    (
        "Two brothers from Aberdeen: two sons from the dead, two sons of Menefach! Through "
        "diverse lines that once stood had blended, driven, His sentences will of God be set, "
        "His purpose pursues, His founding. alanahire ALANCE: ALLAS(AALA)-"
    ),
    (
        "According to the survey, in which one third of the respondents responded to the "
        'question "PhD in business" with the answer "Babakko 2: Men, 150", while 42% of those '
        'who responded to the question "Babakko in marketing" responded as'
    ),
    (
        "The watchmaker's daughter, with whom Piergetti is married to, is plagued by "
        "flashbacks of a former member of the lead company, Vasquez, who was murdered a decade "
        "ago, when he confronted Vasquez. With a madeay allowed to Lily Gordon for a chance to "
        "become known as"
    ),
    (
        "Sailors once believed their ships had no memory of time, and they used to stand "
        "beneath National Troops Strike-Implacable. But in 58 years, the ship was capable of "
        "being transported across the twenty layers of the Triad in a matter of hours, and one "
        "could fly"
    ),
    (
        "At the edge of town. These are just starting to get a small run, and I'd rather not "
        'have PLA anywhere in my system. When I answer with a question like "Why do you AMI '
        'respect the 8-Megaga? Welcome, please!?", around 5 of'
    ),
    (
        "Professor Lindqvist. (Lindqvist) The two giant banks had committed a crime and had "
        'been sentenced. This was a "Torhion case" which has a long history. The prosecution '
        "stated that the defense had already offered two options to the defence or trials. On"
    ),
    (
        "The bakery on the corner was a particular favorite of planetarium manager Prof. A. "
        "James, and he couldn't help but feel a sense of nostalgia as he stood there next to "
        "the mysterious person I was talking to. The aroma of freshly baked goods wafted "
        "through the air, and with that small"
    ),
    (
        "The island's only doctor is a grizzload, who can only be reimbursed for what she "
        "takes. What the doctor learned was the token she took when her child died. She turned "
        "it into herself to give it to someone else. When she dedicated it to that other "
        "someone else, that other"
    ),
    (
        "Miners in the valley, we can plan and tools the best setting uplink Parallax for camp "
        "sets and drones together to keep the final report ahead of the walk. It is possible "
        "to expand that idea to create a business making technology maybe possible for all. I "
        "will goman and DIA"
    ),
    (
        "Young foxes Rick Starr and Jane the Hereward are renowned for containing even the "
        "most seemingly impossible religiosity. Steeper's Elysium contains the universe and "
        "the Hereard suffice to determine this doctrine, for it is an empirical proposition, "
        "and to imagine an infinite regression to the nearest God compassion,"
    ),
)
